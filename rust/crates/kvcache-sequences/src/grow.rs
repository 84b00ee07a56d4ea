//! Owns growth: the blocks a row needs, and copy on write where its partial block is not its own.

use kvcache_blocks::{BlockId, BlockState};

use crate::{BlockCopy, CacheError, KvCache};

/// A block table entry that a copy on write changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacement {
    /// Row of the call.
    pub row: usize,
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
    /// Blocks appended to the rows' block tables, row after row.
    pub new_blocks: Vec<BlockId>,
    /// Row `i` got `new_blocks[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
    /// Entries that changed because the row's partial block was shared.
    pub replaced: Vec<Replacement>,
}

/// What must happen to a row's partial last block before it may be written.
enum Tail {
    /// Nothing: there is none, or it is the row's own.
    Writable,
    /// It has other owners: copy it.
    Shared(BlockId),
    /// It is the row's own, but can be found by its old contents: take it out of the index.
    Published(BlockId),
}

impl KvCache {
    /// Makes room for `n` more tokens beyond those reserved; false, and no change, where the blocks do not suffice.
    pub fn grow(&mut self, id: i64, n: usize) -> Result<bool, CacheError> {
        self.require_open(&[id])?;
        self.grow_row(0, id, n, &mut Growth::default())
    }

    /// Grows many rows in their order, each all or nothing.
    pub fn grow_many(&mut self, ids: &[i64], ns: &[usize]) -> Result<Growth, CacheError> {
        if ids.len() != ns.len() {
            return Err(CacheError::invalid(
                "ns",
                ns.len(),
                "needs as many elements as seqs",
            ));
        }
        self.require_open(ids)?;
        let mut growth = Growth {
            ok: Vec::with_capacity(ids.len()),
            ..Growth::default()
        };
        growth.offsets.reserve(ids.len() + 1);
        growth.offsets.push(0);
        for (row, (id, n)) in ids.iter().zip(ns).enumerate() {
            let ok = self.grow_row(row, *id, *n, &mut growth)?;
            growth.ok.push(ok);
            growth.offsets.push(growth.new_blocks.len());
        }
        Ok(growth)
    }

    fn grow_row(&mut self, row: usize, id: i64, n: usize, growth: &mut Growth) -> Result<bool, CacheError> {
        let sequence = self.sequence(id)?;
        let Some(reserved) = sequence.reserved.checked_add(n) else {
            return Ok(false);
        };
        let (before, after) = (sequence.table.len(), sequence.blocks_for(reserved));
        let partial = sequence.reserved % self.config.block_size != 0;
        let tail = if n > 0 && partial {
            self.tail(sequence.table[before - 1])?
        } else {
            Tail::Writable
        };
        let needed = after - before + usize::from(matches!(tail, Tail::Shared(_)));
        if needed > self.pool.num_available() {
            return Ok(false);
        }
        match tail {
            Tail::Writable => {}
            Tail::Published(block) => self.withdraw(block)?,
            Tail::Shared(source) => {
                let destination = self.allocate()?;
                self.pool.release(source)?;
                self.copies.push(BlockCopy { source, destination });
                self.sequence_mut(id)?.table[before - 1] = destination;
                growth.replaced.push(Replacement {
                    row,
                    position: before - 1,
                    block: destination,
                });
            }
        }
        let first = growth.new_blocks.len();
        for _ in before..after {
            let block = self.allocate()?;
            growth.new_blocks.push(block);
        }
        let sequence = self.sequence_mut(id)?;
        sequence.table.extend_from_slice(&growth.new_blocks[first..]);
        sequence.reserved = reserved;
        Ok(true)
    }

    fn tail(&self, block: BlockId) -> Result<Tail, CacheError> {
        Ok(match self.pool.state(block)? {
            BlockState::InUse(1) if self.pool.is_published(block) => Tail::Published(block),
            BlockState::InUse(1) => Tail::Writable,
            _ => Tail::Shared(block),
        })
    }

    fn withdraw(&mut self, block: BlockId) -> Result<(), CacheError> {
        self.index.remove_block(block);
        Ok(self.pool.unpublish(block)?)
    }

    fn allocate(&mut self) -> Result<BlockId, CacheError> {
        let exhausted = || CacheError::Invariant("the pool has fewer blocks than it counts".into());
        let allocation = self.pool.allocate().ok_or_else(exhausted)?;
        if allocation.evicted {
            self.index.remove_block(allocation.block);
        }
        Ok(allocation.block)
    }
}
