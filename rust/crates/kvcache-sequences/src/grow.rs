//! Owns growth: the blocks a row needs, and copy on write where its partial block is not its own.

use kvcache_blocks::{AccountId, BlockId, BlockInfo, BlockState};
use kvcache_prefix::BlockName;

use crate::{CacheError, KvCache, Sequence};

/// A block table entry that a copy on write changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacement {
    /// Row of the call.
    pub row: usize,
    /// Group of the table.
    pub group: usize,
    /// Position in the row's block table.
    pub position: usize,
    /// The block there now.
    pub block: BlockId,
}

/// What a growth of many rows granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Growth {
    /// By row, whether it was granted.
    pub ok: Vec<bool>,
    /// By group: blocks appended to the rows' block tables, row after row, and where each row's start.
    pub groups: Vec<GroupGrowth>,
    /// Entries that changed because the row's partial block was shared.
    pub replaced: Vec<Replacement>,
}

/// The blocks that rows got in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupGrowth {
    /// Appended to the rows' block tables, row after row.
    pub new_blocks: Vec<BlockId>,
    /// Row `i` got `new_blocks[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
}

/// What must happen to a row's partial last block before it may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// Nothing: there is none, or it is the row's own.
    Writable,
    /// It has other owners: copy it.
    Shared(BlockId),
    /// It is the row's own, but can be found by its old contents: take it out of the index.
    Published(BlockId),
}

/// What one group of a row needs.
#[derive(Debug, Clone, Copy)]
struct Need {
    tail: Tail,
    added: usize,
}

impl KvCache {
    /// Makes room for `n` more tokens beyond those reserved; false, and no change, where the blocks do not suffice.
    pub fn grow(&mut self, id: i64, n: usize) -> Result<bool, CacheError> {
        self.grow_many(&[id], &[n]).map(|growth| growth.ok[0])
    }

    /// Grows many rows in their order, each all or nothing.
    pub fn grow_many(&mut self, ids: &[i64], ns: &[usize]) -> Result<Growth, CacheError> {
        if ids.len() != ns.len() {
            let reason = "needs as many elements as seqs";
            return Err(CacheError::invalid("ns", ns.len(), reason));
        }
        self.require_open(ids)?;
        let mut offsets = Vec::with_capacity(ids.len() + 1);
        offsets.push(0);
        let group = GroupGrowth {
            new_blocks: Vec::new(),
            offsets,
        };
        let mut growth = Growth {
            ok: Vec::with_capacity(ids.len()),
            groups: vec![group; self.layout.groups().len()],
            replaced: Vec::new(),
        };
        for (row, (id, n)) in ids.iter().zip(ns).enumerate() {
            let ok = self.grow_row(row, *id, *n, &mut growth)?;
            growth.ok.push(ok);
            for group in &mut growth.groups {
                group.offsets.push(group.new_blocks.len());
            }
        }
        Ok(growth)
    }

    fn grow_row(&mut self, row: usize, id: i64, n: usize, growth: &mut Growth) -> Result<bool, CacheError> {
        let sequence = self.sequence(id)?;
        let Some(reserved) = sequence
            .reserved
            .checked_add(n)
            .filter(|reserved| i32::try_from(*reserved).is_ok())
        else {
            return Ok(false);
        };
        let mut needed = 0;
        let mut changes_tails = false;
        for group in 0..sequence.groups.len() {
            let need = self.need(sequence, group, reserved)?;
            needed += need.added + usize::from(matches!(need.tail, Tail::Shared(_)));
            changes_tails |= need.tail != Tail::Writable;
        }
        if needed > 0 || changes_tails {
            let account = sequence.account;
            if needed > self.pool.num_available_to(account) {
                return Ok(false);
            }
            if changes_tails {
                self.withdraw_tails(id, reserved)?;
            }
            let fresh = self.allocate_many(account, needed)?;
            self.extend(row, id, reserved, fresh, growth)?;
        }
        self.sequence_mut(id)?.reserved = reserved;
        Ok(true)
    }

    /// Takes partial blocks of a row's own out of the index: before it gets any, because the policy may fail.
    fn withdraw_tails(&mut self, id: i64, reserved: usize) -> Result<(), CacheError> {
        for group in 0..self.layout.groups().len() {
            if let Tail::Published(block) = self.need(self.sequence(id)?, group, reserved)?.tail {
                self.withdraw(block)?;
            }
        }
        Ok(())
    }

    /// Puts fresh blocks, as many as the row needs for `reserved` tokens, into its tables.
    fn extend(
        &mut self,
        row: usize,
        id: i64,
        reserved: usize,
        fresh: Vec<BlockId>,
        growth: &mut Growth,
    ) -> Result<(), CacheError> {
        let mut fresh = fresh.into_iter();
        for group in 0..growth.groups.len() {
            let Need { tail, added } = self.need(self.sequence(id)?, group, reserved)?;
            match tail {
                Tail::Writable | Tail::Published(_) => {}
                Tail::Shared(source) => {
                    let block = fresh.next().ok_or_else(short)?;
                    self.put_back(source, &BlockInfo::default())?;
                    self.transfers.copy(source, block);
                    let table = &mut self.sequence_mut(id)?.groups[group].blocks;
                    let position = table.len() - 1;
                    table[position] = block;
                    growth.replaced.push(Replacement {
                        row,
                        group,
                        position,
                        block,
                    });
                }
            }
            let new_blocks = &mut growth.groups[group].new_blocks;
            let first = new_blocks.len();
            new_blocks.extend(fresh.by_ref().take(added));
            let table = &mut self.sequence_mut(id)?.groups[group].blocks;
            table.extend_from_slice(&new_blocks[first..]);
        }
        Ok(())
    }

    /// What a group needs for `reserved` tokens; what the row has is still as before.
    fn need(&self, sequence: &Sequence, group: usize, reserved: usize) -> Result<Need, CacheError> {
        let table = &sequence.groups[group].blocks;
        let spec = self.layout.groups()[group];
        let added = sequence.entries(group, reserved).saturating_sub(table.len());
        let writes_tail = reserved > sequence.reserved && !sequence.reserved.is_multiple_of(spec.block_size);
        let tail = match table.last() {
            Some(block) if writes_tail && spec.holds_tokens() => self.tail(*block)?,
            _ => Tail::Writable,
        };
        Ok(Need { tail, added })
    }

    fn tail(&self, block: BlockId) -> Result<Tail, CacheError> {
        Ok(match self.pool.state(block)? {
            BlockState::InUse(1) if self.pool.is_published(block) => Tail::Published(block),
            BlockState::InUse(1) => Tail::Writable,
            _ => Tail::Shared(block),
        })
    }

    /// Takes a block in use out of the index.
    fn withdraw(&mut self, block: BlockId) -> Result<(), CacheError> {
        if let Err(error) = self.pool.unpublish(block) {
            return Err(self.after_policy_error(error.into()));
        }
        self.forget_contents(block).map(drop)
    }

    /// Forgets the contents of blocks that lost their mark in a call of the pool which its policy let fail.
    pub(crate) fn after_policy_error(&mut self, error: CacheError) -> CacheError {
        let lost = |block: &BlockId| !self.pool.is_published(*block);
        let blocks = self.index.blocks().filter(lost).collect::<Vec<_>>();
        let forgotten = blocks
            .into_iter()
            .try_for_each(|block| self.forget_contents(block).map(drop));
        forgotten.err().unwrap_or(error)
    }

    /// Takes blocks that the caller has seen to be available; all or none.
    pub(crate) fn allocate_many(&mut self, account: AccountId, n: usize) -> Result<Vec<BlockId>, CacheError> {
        let mut blocks = Vec::with_capacity(n);
        while blocks.len() < n {
            match self.allocate(account) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    self.undo(&blocks)?;
                    return Err(error);
                }
            }
        }
        Ok(blocks)
    }

    fn allocate(&mut self, account: AccountId) -> Result<BlockId, CacheError> {
        let allocation = match self.pool.allocate(account) {
            Ok(allocation) => allocation.ok_or_else(short)?,
            Err(error) => return Err(self.after_policy_error(error.into())),
        };
        if allocation.evicted
            && let Some(name) = self.forget_contents(allocation.block)?
        {
            self.store_evicted(name, allocation.block)?;
        }
        Ok(allocation.block)
    }

    /// Whether a findable block holds fewer tokens than a block can.
    pub(crate) fn is_partial(&self, block: BlockId) -> bool {
        let held = self
            .partial
            .as_ref()
            .and_then(|partial| partial.num_tokens(block));
        held.is_some_and(|tokens| tokens < self.layout.hash_unit())
    }

    /// Makes the contents of a block unfindable, and returns what they were called if they filled it: partial ones are
    /// told to nobody and kept nowhere else.
    pub(crate) fn forget_contents(&mut self, block: BlockId) -> Result<Option<BlockName>, CacheError> {
        let is_partial = self.is_partial(block);
        if let Some(partial) = &mut self.partial {
            partial.remove(block);
        }
        let name = self.index.remove_block(block).filter(|_| !is_partial);
        if let Some(name) = name {
            self.events.removed(block, name)?;
        }
        Ok(name)
    }
}

fn short() -> CacheError {
    CacheError::Invariant("the pool has fewer blocks than it counts".into())
}
