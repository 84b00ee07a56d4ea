//! Owns the full invariant check over pool, index, sequences, pins and the host tier.

use std::collections::HashSet;

use kvcache_blocks::{BlockId, BlockState};

use crate::sequence::NO_BLOCK;
use crate::{CacheError, KvCache, Sequence};

impl KvCache {
    /// Checks every invariant, in time linear in blocks and tokens.
    ///
    /// Reference counts equal occurrences in block tables and pins, each block is in one state and in the list of that
    /// state, the index leads to published blocks only and to all of them, each sequence's lengths agree, the host
    /// tier is consistent and its transfers in flight are those that were begun here.
    pub fn check(&self) -> Result<(), CacheError> {
        self.pool
            .check()
            .map_err(|error| CacheError::Invariant(error.to_string()))?;
        self.check_references()?;
        self.check_index()?;
        self.check_partial()?;
        if let Some(host) = &self.host {
            host.check()?;
            if host.num_in_flight() != self.transfers.num_host() {
                return broken("the host tier awaits other transfers than were begun".into());
            }
        }
        self.sequences
            .iter()
            .try_for_each(|(id, sequence)| self.check_sequence(*id, sequence))
    }

    fn check_references(&self) -> Result<(), CacheError> {
        let mut occurrences = vec![0_u32; self.pool.num_blocks()];
        let tables = self.sequences.values().flat_map(|sequence| &sequence.groups);
        let held = tables.flat_map(|table| table.held().iter().copied());
        for block in held.chain(self.pins.blocks()) {
            let Some(count) = occurrences.get_mut(block as usize) else {
                return broken(format!("block {block} is held and outside the pool"));
            };
            *count += 1;
        }
        for (block, count) in occurrences.into_iter().enumerate() {
            let references = match self.pool.state(block as BlockId)? {
                BlockState::InUse(n) => n,
                BlockState::Free | BlockState::Cached => 0,
            };
            if references != count {
                return broken(format!(
                    "block {block} has {references} references and {count} occurrences"
                ));
            }
        }
        Ok(())
    }

    fn check_index(&self) -> Result<(), CacheError> {
        for block in self.index.blocks() {
            let found = self.index.name(block).and_then(|name| self.index.get(name));
            if found != Some(block) || !self.pool.is_published(block) {
                return broken(format!(
                    "the index leads to block {block}, which is not published under that name"
                ));
            }
        }
        let published = (0..self.pool.num_blocks())
            .filter(|block| self.pool.is_published(*block as BlockId))
            .count();
        if published != self.index.len() {
            return broken(format!(
                "{published} blocks are published and {} are in the index",
                self.index.len()
            ));
        }
        Ok(())
    }

    fn check_partial(&self) -> Result<(), CacheError> {
        let Some(partial) = &self.partial else {
            return Ok(());
        };
        let mut entries = 0;
        for (block, reached) in partial.blocks() {
            entries += 1;
            if !reached || !self.index.contains_block(block) {
                return broken(format!("the tokens of block {block} lead to nothing"));
            }
        }
        if entries != partial.num_children() {
            return broken("the tokens of a block that is gone are still there".into());
        }
        Ok(())
    }

    fn check_sequence(&self, id: i64, sequence: &Sequence) -> Result<(), CacheError> {
        let hashed = if self.layout.is_hashed() {
            sequence.tokens.len() / self.layout.hash_unit()
        } else {
            0
        };
        if sequence.computed > sequence.reserved || sequence.hashes.len() != hashed {
            return broken(format!("the lengths of sequence {id} disagree"));
        }
        let mut seen = HashSet::new();
        for (group, spec) in self.layout.groups().iter().enumerate() {
            let table = &sequence.groups[group];
            let end = sequence.computed.min(sequence.tokens.len());
            let first = spec.first_needed(sequence.computed).min(table.blocks.len());
            let entries = sequence.entries(group, sequence.reserved);
            // A hit brings no encoder blocks: they come with the first growth.
            let awaits_growth = !spec.holds_tokens() && table.blocks.is_empty();
            let lengths = (table.blocks.len() == entries || awaits_growth)
                && table.first <= first
                && table.settled <= end / spec.block_size;
            if !lengths {
                return broken(format!("the lengths of sequence {id} disagree in group {group}"));
            }
            let (given_back, held) = table.blocks.split_at(table.first);
            if given_back.iter().any(|block| *block != NO_BLOCK) || held.contains(&NO_BLOCK) {
                return broken(format!(
                    "sequence {id} holds blocks behind its window in group {group}"
                ));
            }
            if !held.iter().all(|block| seen.insert(*block)) {
                return broken(format!("sequence {id} holds a block twice"));
            }
        }
        Ok(())
    }
}

fn broken<T>(message: String) -> Result<T, CacheError> {
    Err(CacheError::Invariant(message))
}
