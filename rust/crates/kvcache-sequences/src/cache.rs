//! Owns the cache: open sequences, the pool under them, the prefix index, and the calls that act on one or many.

use std::collections::HashSet;
use std::sync::Arc;

use kvcache_blocks::{BlockId, BlockInfo, BlockPool, EvictionPolicy, PoolError, Released};
use kvcache_prefix::PrefixIndex;

use crate::events::Events;
use crate::host::HostTier;
use crate::ids::Sequences;
use crate::partial::PartialIndex;
use crate::pins::Pins;
use crate::sequence::{Dropped, GroupTable};
use crate::tenants::Tenants;
use crate::transfers::PendingTransfers;
use crate::{CacheError, GroupSpec, Layout, Sequence};

/// What a cache is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// The KV groups.
    pub groups: Vec<GroupSpec>,
    /// Blocks of the pool, which serves all groups.
    pub num_blocks: usize,
    /// Whether full blocks are found again by their tokens.
    pub prefix_caching: bool,
    /// Whether the first tokens of a block are found too, at the price of a copy; for one group that keeps all blocks.
    pub partial_reuse: bool,
    /// Blocks of the host tier, to which evicted blocks go; 0 for none.
    pub host_blocks: usize,
}

impl CacheConfig {
    /// One group that keeps all blocks, with prefix caching and nothing more.
    pub fn full(block_size: usize, num_blocks: usize) -> Self {
        Self {
            groups: vec![GroupSpec::full(block_size)],
            num_blocks,
            prefix_caching: true,
            partial_reuse: false,
            host_blocks: 0,
        }
    }
}

/// Counters of a cache. `free + cached + used == num_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Blocks that hold nothing.
    pub free: usize,
    /// Blocks without an owner whose contents can be found again.
    pub cached: usize,
    /// Blocks with an owner.
    pub used: usize,
    /// Tokens looked up by [`KvCache::match_prefix`].
    pub queries: u64,
    /// Tokens found by it, the host tier's included.
    pub hits: u64,
    /// Blocks whose contents were given up, to new owners or for a quota.
    pub evictions: u64,
    /// Open sequences.
    pub sequences: usize,
    /// References that pins hold; a block pinned twice counts twice.
    pub pinned: usize,
    /// Blocks of the host tier, 0 without one.
    pub host_blocks: usize,
    /// Blocks of it that hold contents or await them.
    pub host_used: usize,
    /// Tokens found in the host tier by [`KvCache::match_prefix`].
    pub host_hits: u64,
}

/// Counts what [`KvCache::match_prefix`] looked up and found, in tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HitCounters {
    pub(crate) queries: u64,
    pub(crate) hits: u64,
    pub(crate) host_hits: u64,
}

/// Sequences of tokens over a pool of blocks, with prefix caching.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) layout: Arc<Layout>,
    pub(crate) pool: BlockPool,
    pub(crate) index: PrefixIndex,
    pub(crate) partial: Option<PartialIndex>,
    pub(crate) host: Option<HostTier>,
    pub(crate) sequences: Sequences,
    pub(crate) transfers: PendingTransfers,
    pub(crate) pins: Pins,
    pub(crate) tenants: Tenants,
    pub(crate) counters: HitCounters,
    pub(crate) events: Events,
    pub(crate) now_s: f64,
    next_id: i64,
}

impl KvCache {
    /// Makes an empty cache; the policy must be made for as many blocks and empty.
    pub fn new(config: CacheConfig, policy: Box<dyn EvictionPolicy>) -> Result<Self, CacheError> {
        let one_full_group =
            matches!(config.groups.as_slice(), [group] if *group == GroupSpec::full(group.block_size));
        if config.partial_reuse && !(one_full_group && config.prefix_caching) {
            let reason = "needs prefix caching and one group that keeps all blocks";
            return Err(CacheError::invalid("partial_reuse", 1, reason));
        }
        if config.host_blocks > 0 && !config.prefix_caching {
            let reason = "a host tier needs prefix caching";
            return Err(CacheError::invalid("host_blocks", config.host_blocks, reason));
        }
        let bad_size =
            |error: PoolError| CacheError::invalid("num_blocks", config.num_blocks, error.to_string());
        let num_groups = config.groups.len();
        let layout = Layout::new(config.groups, config.prefix_caching)?;
        Ok(Self {
            pool: BlockPool::new(config.num_blocks, policy).map_err(bad_size)?,
            index: PrefixIndex::new(if layout.is_hashed() { config.num_blocks } else { 0 }),
            layout: Arc::new(layout),
            partial: config.partial_reuse.then(PartialIndex::default),
            host: HostTier::new(config.host_blocks)?,
            sequences: Sequences::default(),
            transfers: PendingTransfers::default(),
            pins: Pins::default(),
            tenants: Tenants::default(),
            counters: HitCounters::default(),
            events: Events::new(num_groups, config.num_blocks, config.host_blocks),
            now_s: 0.0,
            next_id: 0,
        })
    }

    /// The groups, and the sizes that follow from them; what [`Sequence::new`] needs.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Takes a sequence in and returns its id. Ids are never used again.
    pub fn open(&mut self, sequence: Sequence) -> Result<i64, CacheError> {
        if *sequence.layout() != self.layout {
            let reason = "the sequence was made for another layout";
            return Err(CacheError::invalid("sequence", sequence.tokens.len(), reason));
        }
        let id = self.next_id;
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    pub(crate) fn sequence(&self, id: i64) -> Result<&Sequence, CacheError> {
        self.sequences.get(&id).ok_or(CacheError::UnknownSequence(id))
    }

    pub(crate) fn sequence_mut(&mut self, id: i64) -> Result<&mut Sequence, CacheError> {
        self.sequences.get_mut(&id).ok_or(CacheError::UnknownSequence(id))
    }

    pub(crate) fn require_open(&self, ids: &[i64]) -> Result<(), CacheError> {
        ids.iter().try_for_each(|id| self.sequence(*id).map(drop))
    }

    /// Adds tokens that are now known.
    pub fn append(&mut self, id: i64, tokens: &[u32]) -> Result<(), CacheError> {
        self.sequence_mut(id)?.append(tokens);
        Ok(())
    }

    /// Adds tokens to many sequences: row `i` gets `tokens[offsets[i]..offsets[i + 1]]`.
    pub fn append_many(&mut self, ids: &[i64], tokens: &[u32], offsets: &[i32]) -> Result<(), CacheError> {
        let bad = |value: i32, reason: &str| Err(CacheError::invalid("offsets", value, reason));
        if offsets.len() != ids.len() + 1 {
            return bad(offsets.len() as i32, "needs one more element than seqs");
        }
        if let Some(pair) = offsets.windows(2).find(|pair| pair[0] > pair[1]) {
            return bad(pair[1], "must not decrease");
        }
        if offsets[0] != 0 {
            return bad(offsets[0], "must start at 0");
        }
        if offsets[ids.len()] as usize != tokens.len() {
            return bad(offsets[ids.len()], "must end at the number of token_ids");
        }
        self.require_open(ids)?;
        for (id, span) in ids.iter().zip(offsets.windows(2)) {
            self.append(*id, &tokens[span[0] as usize..span[1] as usize])?;
        }
        Ok(())
    }

    /// Keeps the first `n` tokens: known, reserved and computed are lowered to it, blocks beyond go back. Returns the
    /// tokens reserved now, see [`shrink`](Self::shrink).
    pub fn truncate(&mut self, id: i64, n: usize) -> Result<usize, CacheError> {
        let reserved = self.shrink(id, n)?;
        self.sequence_mut(id)?.forget(n);
        Ok(reserved)
    }

    /// Gives back the room beyond the first `n` tokens; what is known of them stays known.
    ///
    /// Returns the tokens reserved now: `n`, or fewer if fewer were, or 0 where a group has given back what the next
    /// token would need (it left a window, or the state after `n` tokens was not kept).
    pub fn shrink(&mut self, id: i64, n: usize) -> Result<usize, CacheError> {
        if n == 0 {
            self.publish_tail(id)?;
        }
        let sequence = self.sequence_mut(id)?;
        let dropped = sequence.shrink(n);
        let (reserved, retention) = (sequence.reserved, sequence.retention);
        self.give_back(&dropped, retention)?;
        Ok(reserved)
    }

    /// Opens a copy of a sequence that shares its blocks.
    ///
    /// The copy has `min(reserved, known)` tokens reserved. A partial block stays shared until one of the two grows
    /// into it: that one gets a block of its own.
    pub fn fork(&mut self, id: i64) -> Result<i64, CacheError> {
        let child = self.sequence(id)?.fork();
        let mut taken = Vec::new();
        for block in child.groups.iter().flat_map(GroupTable::held) {
            if let Err(error) = self.pool.acquire(*block) {
                self.undo(&taken)?;
                return Err(error.into());
            }
            taken.push(*block);
        }
        self.open(child)
    }

    /// Gives references back that a refused call took.
    pub(crate) fn undo(&mut self, taken: &[BlockId]) -> Result<(), CacheError> {
        for block in taken.iter().rev() {
            self.put_back(*block, &BlockInfo::default())?;
        }
        Ok(())
    }

    /// Closes a sequence and gives its blocks back.
    pub fn release(&mut self, id: i64) -> Result<(), CacheError> {
        self.publish_tail(id)?;
        let mut sequence = self
            .sequences
            .remove(&id)
            .ok_or(CacheError::UnknownSequence(id))?;
        let dropped = sequence.shrink(0);
        self.give_back(&dropped, sequence.retention)
    }

    /// [`release`](Self::release) for many sequences, all or none; no id may come twice.
    pub fn release_many(&mut self, ids: &[i64]) -> Result<(), CacheError> {
        self.require_open(ids)?;
        let mut seen = HashSet::with_capacity(ids.len());
        if let Some(twice) = ids.iter().find(|id| !seen.insert(**id)) {
            return Err(CacheError::invalid("seqs", *twice, "no id may come twice"));
        }
        ids.iter().try_for_each(|id| self.release(*id))
    }

    /// Gives blocks back in their order. All of them, also where the policy fails at some: its first error is told.
    pub(crate) fn give_back(
        &mut self,
        dropped: &[Dropped],
        retention: crate::Retention,
    ) -> Result<(), CacheError> {
        let mut outcome = Ok(());
        for block in dropped {
            let info = block.info(retention, self.now_s);
            outcome = outcome.and(self.put_back(block.block, &info));
        }
        outcome
    }

    /// Takes one reference away and forgets the contents where they are lost by that.
    pub(crate) fn put_back(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), CacheError> {
        if let Released::Dropped(error) = self.pool.release(block, info)? {
            self.forget_contents(block)?;
            return error.map_or(Ok(()), |error| Err(error.into()));
        }
        Ok(())
    }

    /// The blocks of a sequence in a group, in order, [`NO_BLOCK`](crate::NO_BLOCK) where none is needed any more.
    pub fn block_table(&self, id: i64, group: usize) -> Result<&[BlockId], CacheError> {
        let sequence = self.sequence(id)?;
        let unknown = || CacheError::invalid("group", group, "the cache has no group of this number");
        sequence
            .groups
            .get(group)
            .map(|table| table.blocks.as_slice())
            .ok_or_else(unknown)
    }

    /// Number of known tokens.
    pub fn num_tokens(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id).map(|sequence| sequence.tokens.len())
    }

    /// Number of tokens that the block tables hold room for: that of the group with the least.
    pub fn capacity(&self, id: i64) -> Result<usize, CacheError> {
        let sequence = self.sequence(id)?;
        let rooms = self
            .layout
            .token_groups()
            .map(|(group, spec)| sequence.groups[group].blocks.len() * spec.block_size);
        Ok(rooms.min().unwrap_or(0))
    }

    /// Number of tokens granted: matched and grown.
    pub fn num_reserved(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id).map(|sequence| sequence.reserved)
    }

    /// Number of tokens whose contents are written: matched and committed.
    pub fn num_computed(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id).map(|sequence| sequence.computed)
    }

    /// Forgets all cached contents, the host tier's included; false, and no change, while a block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<bool, CacheError> {
        if self.pool.num_used() > 0 {
            return Ok(false);
        }
        // In the order of their ids, so that equal calls give equal answers.
        let mut blocks = self.index.blocks().collect::<Vec<_>>();
        blocks.sort_unstable();
        for block in blocks {
            if let Err(error) = self.pool.unpublish(block) {
                return Err(self.after_policy_error(error.into()));
            }
        }
        self.index.clear();
        if let Some(partial) = &mut self.partial {
            *partial = PartialIndex::default();
        }
        if let Some(host) = &mut self.host {
            host.clear();
        }
        self.events.cleared()?;
        Ok(true)
    }

    /// The cached blocks in the order of their eviction; linear in the pool.
    pub fn eviction_order(&self) -> Result<Vec<BlockId>, CacheError> {
        Ok(self.pool.eviction_order()?)
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        let (host_blocks, host_used) = self.host.as_ref().map_or((0, 0), HostTier::usage);
        Stats {
            num_blocks: self.pool.num_blocks(),
            free: self.pool.num_free(),
            cached: self.pool.num_cached(),
            used: self.pool.num_used(),
            queries: self.counters.queries,
            hits: self.counters.hits,
            evictions: self.pool.evictions(),
            sequences: self.sequences.len(),
            pinned: self.pins.num_blocks(),
            host_blocks,
            host_used,
            host_hits: self.counters.host_hits,
        }
    }
}
