//! Owns the least-frequently-used order, with aging.

use crate::links::{Links, List};
use crate::policy::{Must, valid_size};
use crate::{BlockId, BlockInfo, EvictionPolicy, PolicyError};

/// Keys span at most this range, so a key modulo it names a bucket.
const BUCKETS: u64 = 256;
/// Reuses beyond this are not told apart: cached keys lie in `age ..= age + 1 + MAX_REUSES`, one bucket each.
const MAX_REUSES: u8 = 254;

/// Evicts the block whose contents were used least often; among equals the least recently used.
///
/// # Aging
///
/// LFU with dynamic aging, "LFUDA" (Arlitt et al., "Evaluating content management techniques for Web proxy caches",
/// 1999). A block is filed under the key `age + uses` when it is inserted or touched; `uses` is 1 plus its reuses,
/// at most 255. An eviction sets `age` to the key of the victim. So new blocks start level with the last victim,
/// and a block used n times that nobody wants any more survives about n turnovers of the cache, not for ever.
///
/// # Cost
///
/// Every operation is O(1): keys of cached blocks span at most 256 values, so each has a bucket in a ring, a list in
/// the order of recency, and a bitmap finds the first bucket in use. `order` and `check` are linear. 10 bytes a
/// block: two links, the uses and the bucket. Priority, expiry, cost and parent are ignored; blocks at the start of
/// a chain are reused at least as often as those behind them and released after them, so the chain's end goes first.
#[derive(Debug)]
pub struct Lfu {
    links: Links,
    /// Reuses of the contents, at most `MAX_REUSES`; kept while the block is not cached.
    reuses: Vec<u8>,
    /// Key modulo `BUCKETS`, of cached blocks.
    bucket: Vec<u8>,
    lists: Box<[List; BUCKETS as usize]>,
    /// Bit b of word w: bucket 64 w + b has a block.
    in_use: [u64; 4],
    age: u64,
    len: usize,
}

impl Lfu {
    /// Makes the order over `num_blocks` blocks, none of them cached or used before.
    pub fn new(num_blocks: usize) -> Result<Self, PolicyError> {
        valid_size(num_blocks)?;
        Ok(Self {
            links: Links::new(num_blocks),
            reuses: vec![0; num_blocks],
            bucket: vec![0; num_blocks],
            lists: Box::new([List::EMPTY; BUCKETS as usize]),
            in_use: [0; 4],
            age: 0,
            len: 0,
        })
    }

    /// The key of the last victim.
    pub fn age(&self) -> u64 {
        self.age
    }

    /// How often the contents of a block were reused, at most 254; 0 for ids outside the pool.
    pub fn reuses(&self, block: BlockId) -> u32 {
        self.reuses.get(block as usize).copied().map_or(0, u32::from)
    }

    fn check_block(&self, block: BlockId, must: Must) -> Result<(), PolicyError> {
        must.hold(block, self.links.is_listed(block))
    }

    fn file(&mut self, block: BlockId) {
        let key = self.age + 1 + u64::from(self.reuses[block as usize]);
        let bucket = (key % BUCKETS) as u8;
        self.bucket[block as usize] = bucket;
        self.lists[bucket as usize].push_back(&mut self.links, block);
        self.in_use[bucket as usize / 64] |= 1 << (bucket % 64);
        self.len += 1;
    }

    fn take(&mut self, block: BlockId) {
        let bucket = self.bucket[block as usize];
        let list = &mut self.lists[bucket as usize];
        list.remove(&mut self.links, block);
        if list.is_empty() {
            self.in_use[bucket as usize / 64] &= !(1 << (bucket % 64));
        }
        self.len -= 1;
    }

    /// The keys that cached blocks have, in ascending order.
    fn keys(&self) -> impl Iterator<Item = u64> {
        let start = self.age % BUCKETS;
        let (word, bit) = (start as usize / 64, start % 64);
        // The word of the start comes twice: its high bits first, its low bits last.
        (0..=4).flat_map(move |step| {
            let index = (word + step) % 4;
            let bits = match step {
                0 => self.in_use[index] & (u64::MAX << bit),
                4 => self.in_use[index] & !(u64::MAX << bit),
                _ => self.in_use[index],
            };
            set_bits(bits).map(move |bit| {
                let bucket = index as u64 * 64 + bit;
                self.age + (bucket + BUCKETS - start) % BUCKETS
            })
        })
    }

    fn list(&self, key: u64) -> List {
        self.lists[(key % BUCKETS) as usize]
    }
}

/// The positions of the ones in a word, lowest first.
fn set_bits(word: u64) -> impl Iterator<Item = u64> {
    let rest = |word: u64| (word != 0).then_some(word);
    std::iter::successors(rest(word), move |word| rest(word & (word - 1)))
        .map(|word| u64::from(word.trailing_zeros()))
}

impl EvictionPolicy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn len(&self) -> usize {
        self.len
    }

    fn insert(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        info.validate(block, self.links.num_blocks())?;
        self.file(block);
        Ok(())
    }

    fn touch(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let listed = self
            .links
            .is_listed(block)
            .ok_or(PolicyError::OutOfRange(block))?;
        let reuses = &mut self.reuses[block as usize];
        *reuses = (*reuses + 1).min(MAX_REUSES);
        if listed {
            self.take(block);
            self.file(block);
        }
        Ok(())
    }

    fn remove(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        self.take(block);
        Ok(())
    }

    fn forget(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        self.reuses[block as usize] = 0;
        Ok(())
    }

    fn evict(&mut self) -> Result<Option<BlockId>, PolicyError> {
        let Some(key) = self.keys().next() else {
            return Ok(None);
        };
        let victim = self.list(key).front();
        if let Some(block) = victim {
            self.take(block);
            self.reuses[block as usize] = 0;
            self.age = key;
        }
        Ok(victim)
    }

    fn update(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        info.validate(block, self.links.num_blocks())
    }

    fn order(&self) -> Result<Vec<BlockId>, PolicyError> {
        let lists = self.keys().map(|key| self.list(key));
        Ok(lists.flat_map(|list| list.iter(&self.links)).collect())
    }

    fn memory_bytes(&self) -> Option<usize> {
        let counts = self.reuses.capacity() + self.bucket.capacity();
        Some(self.links.memory_bytes() + counts + size_of_val(&*self.lists))
    }

    fn check(&self) -> Result<(), PolicyError> {
        let mut listed = 0;
        for key in self.keys() {
            let list = self.list(key);
            let len = list.consistent_len(&self.links);
            listed += len.ok_or(PolicyError::Inconsistent("a bucket's links and ends disagree"))?;
            let mut blocks = list.iter(&self.links);
            if blocks.any(|block| u64::from(self.bucket[block as usize]) != key % BUCKETS) {
                return Err(PolicyError::Inconsistent("a block is in another's bucket"));
            }
        }
        let filled = self.lists.iter().filter(|list| !list.is_empty()).count();
        if filled != self.keys().count() || self.keys().any(|key| self.list(key).is_empty()) {
            return Err(PolicyError::Inconsistent(
                "a bucket's bit disagrees with its list",
            ));
        }
        if listed != self.len || self.links.num_listed() != self.len {
            return Err(PolicyError::Inconsistent("the buckets and the length disagree"));
        }
        if self.reuses.iter().any(|reuses| *reuses > MAX_REUSES) {
            return Err(PolicyError::Inconsistent("a reuse count is above its cap"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Lfu {
        let mut policy = Lfu::new(4).expect("a small pool");
        for block in 0..3 {
            policy.insert(block, &BlockInfo::default()).expect("not cached");
        }
        policy
    }

    #[test]
    fn damage_is_found() {
        let damages: [fn(&mut Lfu); 5] = [
            |policy| policy.in_use[0] = 0,
            |policy| policy.in_use[3] = 1,
            |policy| policy.bucket[1] = 9,
            |policy| policy.len = 2,
            |policy| policy.reuses[3] = 255,
        ];
        for (which, damage) in damages.iter().enumerate() {
            let mut policy = three();
            assert_eq!(policy.check(), Ok(()));
            damage(&mut policy);
            assert!(policy.check().is_err(), "damage {which}");
        }
    }
}
