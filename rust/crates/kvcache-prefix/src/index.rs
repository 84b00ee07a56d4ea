//! Owns the map between the names of contents and the blocks that hold them.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use kvcache_blocks::BlockId;

use crate::BlockHash;

/// What the contents of a block are called: the block hash and the KV group whose keys and values they are.
///
/// Group 0 uses the hash as it is; the others fold their number in, so that one index serves all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName(u128);

/// Odd, so that no two groups have the same multiple; its bits are those of the golden ratio.
const GROUP_STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

impl BlockName {
    /// The name of a block's contents in a group.
    pub const fn new(hash: BlockHash, group: usize) -> Self {
        Self(hash.to_u128() ^ GROUP_STEP.wrapping_mul(group as u128))
    }

    /// The name of this number.
    pub const fn from_u128(number: u128) -> Self {
        Self(number)
    }

    /// The hash, where the group is known.
    pub const fn hash(self, group: usize) -> BlockHash {
        BlockHash::from_bytes((self.0 ^ GROUP_STEP.wrapping_mul(group as u128)).to_le_bytes())
    }

    /// The name as a number, for use as a key.
    pub const fn to_u128(self) -> u128 {
        self.0
    }
}

/// Which block holds the contents of a name, and back.
///
/// 16 bytes a block for the way back. The way there keeps block ids only and compares the names behind them: 5 bytes
/// for each slot of a table that is at most seven eighths full.
#[derive(Debug)]
pub struct PrefixIndex {
    blocks: HashTable<BlockId>,
    /// By block; meaningful only where `blocks` leads back to the block.
    names: Vec<BlockName>,
    /// Of this process, so that nobody can aim tokens at one bucket.
    seed: u64,
}

impl PrefixIndex {
    /// Makes an empty index over blocks `0..num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        Self {
            blocks: HashTable::new(),
            names: vec![BlockName(0); num_blocks],
            seed: RandomState::new().hash_one(0_u64),
        }
    }

    /// Number of names that lead to a block.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no name leads to a block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block that holds these contents.
    pub fn get(&self, name: BlockName) -> Option<BlockId> {
        let same = |block: &BlockId| self.names[*block as usize] == name;
        self.blocks.find(bucket(self.seed, name), same).copied()
    }

    /// Enters a block under a name; false, and no change, where the name leads to a block already, the block has a
    /// name already, or the block is outside the index.
    pub fn insert(&mut self, name: BlockName, block: BlockId) -> bool {
        if block as usize >= self.names.len() || self.get(name).is_some() || self.contains_block(block) {
            return false;
        }
        self.names[block as usize] = name;
        let (names, seed) = (&self.names, self.seed);
        self.blocks.insert_unique(bucket(seed, name), block, |other| {
            bucket(seed, names[*other as usize])
        });
        true
    }

    /// Takes a block out and returns its name; nothing where it was not in the index.
    pub fn remove_block(&mut self, block: BlockId) -> Option<BlockName> {
        let name = *self.names.get(block as usize)?;
        let entry = self
            .blocks
            .find_entry(bucket(self.seed, name), |other| *other == block)
            .ok()?;
        entry.remove();
        Some(name)
    }

    /// Whether some name leads to the block.
    pub fn contains_block(&self, block: BlockId) -> bool {
        self.name(block).is_some()
    }

    /// The name that leads to the block.
    pub fn name(&self, block: BlockId) -> Option<BlockName> {
        let name = *self.names.get(block as usize)?;
        self.blocks
            .find(bucket(self.seed, name), |other| *other == block)
            .map(|_| name)
    }

    /// The blocks that a name leads to, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().copied()
    }

    /// Forgets every name.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }
}

/// Names are hashes already: one multiplication spreads them under the seed.
fn bucket(seed: u64, name: BlockName) -> u64 {
    let (low, high) = (name.0 as u64, (name.0 >> 64) as u64);
    let product = u128::from(low ^ seed) * u128::from(high ^ seed.rotate_left(32) | 1);
    (product >> 64) as u64 ^ product as u64
}
