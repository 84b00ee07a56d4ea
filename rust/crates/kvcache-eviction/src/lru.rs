//! Owns the least-recently-used order.

use crate::links::{Links, List};
use crate::policy::{Must, valid_size};
use crate::{BlockId, BlockInfo, EvictionPolicy, PolicyError};

/// Evicts the block that was released (or touched) longest ago.
///
/// Every operation is O(1); 8 bytes a block, none per operation. Priority, expiry, cost, parent and reuse are
/// ignored. A chain released deepest block first is evicted deepest block first.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    list: List,
    len: usize,
}

impl Lru {
    /// Makes the order over `num_blocks` blocks, none of them cached.
    pub fn new(num_blocks: usize) -> Result<Self, PolicyError> {
        valid_size(num_blocks)?;
        Ok(Self {
            links: Links::new(num_blocks),
            list: List::EMPTY,
            len: 0,
        })
    }

    fn check_block(&self, block: BlockId, must: Must) -> Result<(), PolicyError> {
        must.hold(block, self.links.is_listed(block))
    }

    fn take(&mut self, block: BlockId) {
        self.list.remove(&mut self.links, block);
        self.len -= 1;
    }
}

impl EvictionPolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn len(&self) -> usize {
        self.len
    }

    fn insert(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        info.validate(block, self.links.num_blocks())?;
        self.list.push_back(&mut self.links, block);
        self.len += 1;
        Ok(())
    }

    fn touch(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let listed = self
            .links
            .is_listed(block)
            .ok_or(PolicyError::OutOfRange(block))?;
        if listed {
            self.list.remove(&mut self.links, block);
            self.list.push_back(&mut self.links, block);
        }
        Ok(())
    }

    fn remove(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        self.take(block);
        Ok(())
    }

    fn forget(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)
    }

    fn evict(&mut self) -> Result<Option<BlockId>, PolicyError> {
        let victim = self.list.front();
        if let Some(block) = victim {
            self.take(block);
        }
        Ok(victim)
    }

    fn update(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        info.validate(block, self.links.num_blocks())
    }

    fn order(&self) -> Result<Vec<BlockId>, PolicyError> {
        Ok(self.list.iter(&self.links).collect())
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.links.memory_bytes())
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.list.consistent_len(&self.links) != Some(self.len) || self.links.num_listed() != self.len {
            return Err(PolicyError::Inconsistent(
                "the list's links, ends and length disagree",
            ));
        }
        Ok(())
    }
}
