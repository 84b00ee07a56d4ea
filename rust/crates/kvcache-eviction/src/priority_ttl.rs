//! Owns the order by expiry, priority and recency.

use crate::heap::IndexHeap;
use crate::leaves::Leaves;
use crate::policy::{Must, valid_size};
use crate::{BlockId, BlockInfo, EvictionPolicy, PolicyError};

/// What the order looks at: 24 bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Seconds; infinite without expiry.
    expires_at: f64,
    /// When the block was last used, in operations.
    used: u64,
    priority: i32,
    expired: bool,
}

impl Entry {
    const NONE: Self = Self {
        expires_at: f64::INFINITY,
        used: 0,
        priority: 0,
        expired: false,
    };

    /// Whether this block is evicted before the other one: expired, then low priority, then long unused.
    fn goes_before(&self, other: &Self) -> bool {
        let key = |entry: &Self| (!entry.expired, entry.priority, entry.used);
        key(self) < key(other)
    }
}

/// Evicts expired blocks first, then those of the lowest priority; among equals the least recently used.
///
/// Expired blocks are ordered by priority and recency among themselves. A block expires when
/// [`set_time`](EvictionPolicy::set_time) reaches its `expires_at`; it is not given back at once, only first.
/// Cached blocks that name a block as their parent are evicted before it, whatever their priority.
///
/// # Cost
///
/// `insert`, `touch`, `remove`, `update` and `evict` are O(log n). `set_time` is O(1) plus O(log n) for each block
/// that expires. `order` works on a copy. 48 bytes a block. Cost and reuse are ignored.
#[derive(Debug, Clone)]
pub struct PriorityTtl {
    entries: Vec<Entry>,
    leaves: Leaves,
    /// The cached blocks that will expire, by time.
    expiring: IndexHeap,
    now_s: f64,
    uses: u64,
}

/// The order of `leaves`.
fn by_eviction(entries: &[Entry]) -> impl Fn(BlockId, BlockId) -> bool {
    |a, b| entries[a as usize].goes_before(&entries[b as usize])
}

/// The order of `expiring`: by time; ids break ties, so that it is total.
fn by_expiry(entries: &[Entry]) -> impl Fn(BlockId, BlockId) -> bool {
    |a, b| {
        let times = entries[a as usize]
            .expires_at
            .total_cmp(&entries[b as usize].expires_at);
        times.then(a.cmp(&b)).is_lt()
    }
}

impl PriorityTtl {
    /// Makes the order over `num_blocks` blocks, none of them cached, at time negative infinity.
    pub fn new(num_blocks: usize) -> Result<Self, PolicyError> {
        valid_size(num_blocks)?;
        Ok(Self {
            entries: vec![Entry::NONE; num_blocks],
            leaves: Leaves::new(num_blocks),
            expiring: IndexHeap::new(num_blocks),
            now_s: f64::NEG_INFINITY,
            uses: 0,
        })
    }

    fn check_block(&self, block: BlockId, must: Must) -> Result<(), PolicyError> {
        must.hold(block, self.leaves.is_cached(block))
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Writes an entry and files the block by its expiry; it is in neither heap, or only in `leaves`.
    fn set_entry(&mut self, block: BlockId, info: &BlockInfo, used: u64) {
        let expires_at = info.expires_at.unwrap_or(f64::INFINITY);
        let expired = expires_at <= self.now_s;
        self.entries[block as usize] = Entry {
            expires_at,
            used,
            priority: info.priority,
            expired,
        };
        if info.expires_at.is_some() && !expired {
            self.expiring.push(block, &by_expiry(&self.entries));
        }
    }

    fn take(&mut self, block: BlockId) {
        self.expiring.remove(block, &by_expiry(&self.entries));
        self.leaves.remove(block, &by_eviction(&self.entries));
    }
}

impl EvictionPolicy for PriorityTtl {
    fn name(&self) -> &'static str {
        "priority+ttl"
    }

    fn len(&self) -> usize {
        self.leaves.len()
    }

    fn insert(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        info.validate(block, self.entries.len())?;
        let used = self.next_use();
        self.set_entry(block, info, used);
        self.leaves
            .insert(block, info.parent, &by_eviction(&self.entries));
        Ok(())
    }

    fn touch(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let cached = self
            .leaves
            .is_cached(block)
            .ok_or(PolicyError::OutOfRange(block))?;
        if cached {
            self.entries[block as usize].used = self.next_use();
            self.leaves.reorder(block, &by_eviction(&self.entries));
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
        let victim = self.leaves.first(&by_eviction(&self.entries));
        if let Some(block) = victim {
            self.take(block);
        }
        Ok(victim)
    }

    fn update(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        info.validate(block, self.entries.len())?;
        self.expiring.remove(block, &by_expiry(&self.entries));
        let used = self.entries[block as usize].used;
        self.set_entry(block, info, used);
        self.leaves
            .update(block, info.parent, &by_eviction(&self.entries));
        Ok(())
    }

    fn set_time(&mut self, now_s: f64) -> Result<(), PolicyError> {
        if !now_s.is_finite() || now_s < self.now_s {
            return Err(PolicyError::BadTime {
                now_s,
                before_s: self.now_s,
            });
        }
        self.now_s = now_s;
        while let Some(block) = self.expiring.first()
            && self.entries[block as usize].expires_at <= now_s
        {
            self.expiring.remove(block, &by_expiry(&self.entries));
            self.entries[block as usize].expired = true;
            self.leaves.reorder(block, &by_eviction(&self.entries));
        }
        Ok(())
    }

    fn order(&self) -> Result<Vec<BlockId>, PolicyError> {
        let mut copy = self.clone();
        std::iter::from_fn(|| copy.evict().transpose()).collect()
    }

    fn memory_bytes(&self) -> Option<usize> {
        let entries = self.entries.capacity() * size_of::<Entry>();
        Some(entries + self.leaves.memory_bytes() + self.expiring.memory_bytes())
    }

    fn check(&self) -> Result<(), PolicyError> {
        if !self.leaves.is_consistent(&by_eviction(&self.entries)) {
            return Err(PolicyError::Inconsistent("heap, parents and length disagree"));
        }
        if !self.expiring.is_consistent(&by_expiry(&self.entries)) {
            return Err(PolicyError::Inconsistent("the heap of expiries is out of order"));
        }
        for (block, entry) in self.entries.iter().enumerate() {
            let cached = self.leaves.is_cached(block as BlockId) == Some(true);
            let expires = cached && entry.expires_at.is_finite();
            if cached && entry.expired != (entry.expires_at <= self.now_s) {
                return Err(PolicyError::Inconsistent(
                    "a block's expiry disagrees with the time",
                ));
            }
            if self.expiring.contains(block as BlockId) != (expires && !entry.expired) {
                return Err(PolicyError::Inconsistent("a block waits for the wrong expiry"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> PriorityTtl {
        let mut policy = PriorityTtl::new(4).expect("a small pool");
        for block in 0..3 {
            let info = BlockInfo {
                expires_at: Some(f64::from(block)),
                ..BlockInfo::default()
            };
            policy.insert(block, &info).expect("not cached");
        }
        policy.set_time(0.5).expect("later than never");
        policy
    }

    #[test]
    fn damage_is_found() {
        let damages: [fn(&mut PriorityTtl); 5] = [
            |policy| policy.now_s = 1.5,
            |policy| policy.entries[0].expired = false,
            |policy| policy.entries[1].expires_at = 3.0,
            |policy| policy.leaves = Leaves::new(4),
            |policy| policy.expiring = IndexHeap::new(4),
        ];
        for (which, damage) in damages.iter().enumerate() {
            let mut policy = three();
            assert_eq!(policy.check(), Ok(()));
            damage(&mut policy);
            assert!(policy.check().is_err(), "damage {which}");
        }
    }
}
