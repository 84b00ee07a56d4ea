//! Owns the map between block hashes and the blocks that hold their contents.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hasher};

use kvcache_blocks::BlockId;

use crate::BlockHash;

/// Which block holds the contents named by a hash, and back.
///
/// 16 bytes a block for the way back, and a hash map with an entry for each block that is published.
#[derive(Debug)]
pub struct PrefixIndex {
    blocks: HashMap<u128, BlockId, FoldState>,
    /// By block; meaningful only where `blocks` leads back to the block.
    hashes: Vec<u128>,
}

impl PrefixIndex {
    /// Makes an empty index over blocks `0..num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self {
            blocks: HashMap::with_hasher(FoldState::new()),
            hashes: vec![0; num_blocks],
        }
    }

    /// Number of hashes that lead to a block.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no hash leads to a block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block that holds these contents.
    pub fn get(&self, hash: BlockHash) -> Option<BlockId> {
        self.blocks.get(&hash.to_u128()).copied()
    }

    /// Enters a block under a hash; false, and no change, where the hash leads to a block already, the block has
    /// a hash already, or the block is outside the index.
    pub fn insert(&mut self, hash: BlockHash, block: BlockId) -> bool {
        if self.contains_block(block) || block as usize >= self.hashes.len() {
            return false;
        }
        let Entry::Vacant(entry) = self.blocks.entry(hash.to_u128()) else {
            return false;
        };
        entry.insert(block);
        self.hashes[block as usize] = hash.to_u128();
        true
    }

    /// Takes a block out; false where it was not in the index.
    pub fn remove_block(&mut self, block: BlockId) -> bool {
        self.contains_block(block) && self.blocks.remove(&self.hashes[block as usize]).is_some()
    }

    /// Whether some hash leads to the block.
    pub fn contains_block(&self, block: BlockId) -> bool {
        let hash = self.hashes.get(block as usize);
        hash.and_then(|hash| self.blocks.get(hash)) == Some(&block)
    }

    /// The blocks that a hash leads to, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.values().copied()
    }

    /// Forgets every hash.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }
}

/// Hashes keys that are hashes already: one multiplication, with a seed of this process so that nobody can aim
/// tokens at one bucket.
#[derive(Debug, Clone)]
struct FoldState {
    seed: u64,
}

impl FoldState {
    fn new() -> Self {
        Self {
            seed: RandomState::new().hash_one(0_u64),
        }
    }
}

impl BuildHasher for FoldState {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(self.seed)
    }
}

#[derive(Debug)]
struct FoldHasher(u64);

impl FoldHasher {
    fn fold(&mut self, low: u64, high: u64) {
        let product = u128::from(low ^ self.0) * u128::from(high ^ self.0.rotate_left(32) | 1);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.fold(u64::from(*byte), 0);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.fold(value as u64, (value >> 64) as u64);
    }
}
