//! Owns the cache: open sequences, the pool under them, the prefix index, and the calls that act on one or many.

use std::collections::{HashMap, HashSet};

use kvcache_blocks::{BlockId, BlockPool};
use kvcache_prefix::PrefixIndex;

use crate::{CacheError, Sequence};

/// What a cache is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens a block holds.
    pub block_size: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Whether full blocks are found again by their tokens.
    pub prefix_caching: bool,
}

impl CacheConfig {
    pub(crate) fn check_block_size(&self) -> Result<(), CacheError> {
        if self.block_size == 0 || self.block_size > i32::MAX as usize {
            return Err(CacheError::invalid(
                "block_size",
                self.block_size,
                "must be 1 to 2^31 - 1",
            ));
        }
        Ok(())
    }
}

/// A block whose contents must be copied to another before either is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub source: BlockId,
    /// The block to write.
    pub destination: BlockId,
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
    /// Tokens found by it.
    pub hits: u64,
    /// Cached blocks given to new owners.
    pub evictions: u64,
    /// Open sequences.
    pub sequences: usize,
}

/// Sequences of tokens over a pool of blocks, with prefix caching.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) config: CacheConfig,
    pub(crate) pool: BlockPool,
    pub(crate) index: PrefixIndex,
    pub(crate) sequences: HashMap<i64, Sequence>,
    pub(crate) copies: Vec<BlockCopy>,
    next_id: i64,
    queries: u64,
    hits: u64,
}

impl KvCache {
    /// Makes an empty cache.
    pub fn new(config: CacheConfig) -> Result<Self, CacheError> {
        config.check_block_size()?;
        let pool = BlockPool::new(config.num_blocks)
            .map_err(|error| CacheError::invalid("num_blocks", config.num_blocks, error.to_string()))?;
        Ok(Self {
            config,
            pool,
            index: PrefixIndex::new(if config.prefix_caching {
                config.num_blocks
            } else {
                0
            }),
            sequences: HashMap::new(),
            copies: Vec::new(),
            next_id: 0,
            queries: 0,
            hits: 0,
        })
    }

    /// What the cache was made from.
    pub fn config(&self) -> CacheConfig {
        self.config
    }

    /// Takes a sequence in and returns its id. Ids are never used again.
    pub fn open(&mut self, sequence: Sequence) -> Result<i64, CacheError> {
        if sequence.block_size() != self.config.block_size
            || sequence.is_hashed() != self.config.prefix_caching
        {
            let reason = "the sequence was made for another configuration";
            return Err(CacheError::invalid("sequence", sequence.block_size(), reason));
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

    /// Attaches the cached blocks that hold the sequence's first tokens and returns how many tokens they hold.
    ///
    /// Full blocks only, at most `max_tokens`, and never the last known token: its logits must be computed.
    pub fn match_prefix(&mut self, id: i64, max_tokens: Option<usize>) -> Result<usize, CacheError> {
        let sequence = self
            .sequences
            .get_mut(&id)
            .ok_or(CacheError::UnknownSequence(id))?;
        if sequence.reserved != 0 {
            let reason = "match comes before grow: the sequence has tokens reserved";
            return Err(CacheError::invalid("seq", id, reason));
        }
        if !self.config.prefix_caching {
            return Ok(0);
        }
        let limit = sequence
            .tokens
            .len()
            .saturating_sub(1)
            .min(max_tokens.unwrap_or(usize::MAX));
        let candidates = &sequence.hashes[..limit / self.config.block_size];
        let found = candidates
            .iter()
            .map_while(|hash| self.index.get(*hash))
            .collect::<Vec<_>>();
        for block in &found {
            self.pool.acquire(*block)?;
        }
        let hit = found.len() * self.config.block_size;
        sequence.settled = found.len();
        sequence.table = found;
        (sequence.reserved, sequence.computed) = (hit, hit);
        self.queries += sequence.tokens.len() as u64;
        self.hits += hit as u64;
        Ok(hit)
    }

    /// Adds tokens that are now known.
    pub fn append(&mut self, id: i64, tokens: &[u32]) -> Result<(), CacheError> {
        self.sequence_mut(id)?.append(tokens);
        Ok(())
    }

    /// Adds tokens to many sequences: row `i` gets `tokens[offsets[i]..offsets[i + 1]]`.
    pub fn append_many(&mut self, ids: &[i64], tokens: &[u32], offsets: &[i32]) -> Result<(), CacheError> {
        if offsets.len() != ids.len() + 1 {
            return Err(CacheError::invalid(
                "offsets",
                offsets.len(),
                "needs one more element than seqs",
            ));
        }
        if let Some(pair) = offsets.windows(2).find(|pair| pair[0] > pair[1]) {
            return Err(CacheError::invalid("offsets", pair[1], "must not decrease"));
        }
        if offsets[0] != 0 {
            return Err(CacheError::invalid("offsets", offsets[0], "must start at 0"));
        }
        let end = offsets[ids.len()];
        if end as usize != tokens.len() {
            return Err(CacheError::invalid(
                "offsets",
                end,
                "must end at the number of token_ids",
            ));
        }
        self.require_open(ids)?;
        for (id, span) in ids.iter().zip(offsets.windows(2)) {
            self.append(*id, &tokens[span[0] as usize..span[1] as usize])?;
        }
        Ok(())
    }

    pub(crate) fn require_open(&self, ids: &[i64]) -> Result<(), CacheError> {
        ids.iter().try_for_each(|id| self.sequence(*id).map(drop))
    }

    /// States that the contents of the first `num_computed` tokens are written, and publishes the full blocks among
    /// them. A number below an earlier one changes nothing.
    pub fn commit(&mut self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        self.check_commit(id, num_computed)?;
        self.publish(id, num_computed)
    }

    /// [`commit`](Self::commit) for many rows, all or none.
    pub fn commit_many(&mut self, ids: &[i64], num_computed: &[usize]) -> Result<(), CacheError> {
        if ids.len() != num_computed.len() {
            return Err(CacheError::invalid(
                "num_computed",
                num_computed.len(),
                "needs as many elements as seqs",
            ));
        }
        let rows = || ids.iter().copied().zip(num_computed.iter().copied());
        rows().try_for_each(|(id, n)| self.check_commit(id, n))?;
        rows().try_for_each(|(id, n)| self.publish(id, n))
    }

    fn check_commit(&self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        let reserved = self.sequence(id)?.reserved;
        if num_computed > reserved {
            let reason = format!("sequence {id} has {reserved} tokens reserved");
            return Err(CacheError::invalid("num_computed", num_computed, reason));
        }
        Ok(())
    }

    fn publish(&mut self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        let sequence = self
            .sequences
            .get_mut(&id)
            .ok_or(CacheError::UnknownSequence(id))?;
        sequence.computed = sequence.computed.max(num_computed);
        // Tokens in flight may be computed before they are known: their block waits for its hash.
        let full = (sequence.computed / self.config.block_size).min(sequence.hashes.len());
        for i in sequence.settled..full {
            let block = sequence.table[i];
            // Where the contents are known under another block, that one stays.
            if self.index.insert(sequence.hashes[i], block) {
                self.pool.publish(block)?;
            }
        }
        sequence.settled = sequence.settled.max(full);
        Ok(())
    }

    /// Keeps the first `n` tokens: known, reserved and computed are lowered to it, blocks beyond go back.
    pub fn truncate(&mut self, id: i64, n: usize) -> Result<(), CacheError> {
        self.shrink(id, n)?;
        self.sequence_mut(id)?.forget(n);
        Ok(())
    }

    /// Gives back the room beyond the first `n` tokens; what is known of them stays known.
    pub fn shrink(&mut self, id: i64, n: usize) -> Result<(), CacheError> {
        let blocks = self.sequence_mut(id)?.shrink(n);
        self.give_back(blocks)
    }

    /// Opens a copy of a sequence that shares its blocks.
    ///
    /// The copy has `min(reserved, known)` tokens reserved. A partial block stays shared until one of the two grows
    /// into it: that one gets a block of its own.
    pub fn fork(&mut self, id: i64) -> Result<i64, CacheError> {
        let child = self.sequence(id)?.fork();
        for block in &child.table {
            self.pool.acquire(*block)?;
        }
        self.open(child)
    }

    /// Closes a sequence and gives its blocks back.
    pub fn release(&mut self, id: i64) -> Result<(), CacheError> {
        let mut sequence = self
            .sequences
            .remove(&id)
            .ok_or(CacheError::UnknownSequence(id))?;
        self.give_back(sequence.shrink(0))
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

    fn give_back(&mut self, blocks: impl Iterator<Item = BlockId>) -> Result<(), CacheError> {
        for block in blocks {
            self.pool.release(block)?;
        }
        Ok(())
    }

    /// The blocks of a sequence, in order.
    pub fn block_table(&self, id: i64) -> Result<&[BlockId], CacheError> {
        self.sequence(id).map(|sequence| sequence.table.as_slice())
    }

    /// Hands over the copies due before the next step; apply them one after the other.
    pub fn take_copies(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Number of known tokens.
    pub fn num_tokens(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id).map(|sequence| sequence.tokens.len())
    }

    /// Number of tokens that the block table holds room for.
    pub fn capacity(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id)
            .map(|sequence| sequence.table.len() * self.config.block_size)
    }

    /// Number of tokens granted: matched and grown.
    pub fn num_reserved(&self, id: i64) -> Result<usize, CacheError> {
        self.sequence(id).map(|sequence| sequence.reserved)
    }

    /// Forgets all cached contents; false, and no change, while a block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<bool, CacheError> {
        if self.pool.num_used() > 0 {
            return Ok(false);
        }
        for block in self.index.blocks() {
            self.pool.unpublish(block)?;
        }
        self.index.clear();
        Ok(true)
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        Stats {
            num_blocks: self.pool.num_blocks(),
            free: self.pool.num_free(),
            cached: self.pool.num_cached(),
            used: self.pool.num_used(),
            queries: self.queries,
            hits: self.hits,
            evictions: self.pool.evictions(),
            sequences: self.sequences.len(),
        }
    }
}
