//! Owns the full invariant check over pool, index and sequences.

use kvcache_blocks::{BlockId, BlockState};

use crate::{CacheError, KvCache, Sequence};

impl KvCache {
    /// Checks every invariant, in time linear in blocks and tokens.
    ///
    /// Reference counts equal occurrences in block tables, each block is in one state and in the list of that state,
    /// the index leads to published blocks only and to all of them, and each sequence's lengths agree.
    pub fn check(&self) -> Result<(), CacheError> {
        self.pool.check()?;
        self.check_references()?;
        self.check_index()?;
        self.sequences
            .iter()
            .try_for_each(|(id, sequence)| self.check_sequence(*id, sequence))
    }

    fn check_references(&self) -> Result<(), CacheError> {
        let mut occurrences = vec![0_u32; self.pool.num_blocks()];
        for (id, sequence) in &self.sequences {
            for block in &sequence.table {
                let Some(count) = occurrences.get_mut(*block as usize) else {
                    return broken(format!("sequence {id} holds block {block} outside the pool"));
                };
                *count += 1;
            }
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
            if !self.index.contains_block(block) || !self.pool.is_published(block) {
                return broken(format!(
                    "the index leads to block {block}, which is not published under that hash"
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

    fn check_sequence(&self, id: i64, sequence: &Sequence) -> Result<(), CacheError> {
        let size = self.config.block_size;
        let hashed = if self.config.prefix_caching {
            sequence.tokens.len() / size
        } else {
            0
        };
        let settled_limit = (sequence.computed / size).min(sequence.hashes.len());
        let lengths = sequence.table.len() == sequence.blocks_for(sequence.reserved)
            && sequence.computed <= sequence.reserved
            && sequence.settled <= settled_limit
            && sequence.hashes.len() == hashed;
        if !lengths {
            return broken(format!("the lengths of sequence {id} disagree"));
        }
        let mut table = sequence.table.clone();
        table.sort_unstable();
        if table.windows(2).any(|pair| pair[0] == pair[1]) {
            return broken(format!("sequence {id} holds a block twice"));
        }
        Ok(())
    }
}

fn broken<T>(message: String) -> Result<T, CacheError> {
    Err(CacheError::Invariant(message))
}
