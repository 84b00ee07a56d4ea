//! Owns the order by what it would cost to compute a block again, weighed by its reuse.

use crate::leaves::Leaves;
use crate::policy::{Must, valid_size};
use crate::{BlockId, BlockInfo, EvictionPolicy, PolicyError};

/// What the order looks at: 24 bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// H of the block.
    value: f64,
    /// When the block was last used, in operations.
    used: u64,
    cost: f32,
    /// Reuses of the contents; kept while the block is not cached.
    reuses: u32,
}

impl Entry {
    const NONE: Self = Self {
        value: 0.0,
        used: 0,
        cost: 0.0,
        reuses: 0,
    };

    fn worth(&self) -> f64 {
        (1.0 + f64::from(self.reuses)) * f64::from(self.cost)
    }

    fn goes_before(&self, other: &Self) -> bool {
        self.value
            .total_cmp(&other.value)
            .then(self.used.cmp(&other.used))
            .is_lt()
    }
}

/// Evicts the block with the least `H = L + (1 + reuses) x cost`; among equals the least recently used.
///
/// `GreedyDual`-Size-Frequency (L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
/// Caching Policy", HP Laboratories HPL-98-69R1, 1998) for blocks of one size. H is set when a block is inserted,
/// touched or updated. An eviction raises the inflation L to the H of its victim, so what was dear long ago gives
/// way in the end. Cached blocks that name a block as their parent are evicted before it: the end of a chain is
/// often dearer than its start, but worth nothing without it.
///
/// # Cost
///
/// `insert`, `touch`, `remove`, `update` and `evict` are O(log n); `order` works on a copy. 40 bytes a block.
/// Priority and expiry are ignored. L is a double and never shrinks: differences of cost below `L x 2^-52` are lost,
/// and such blocks go by recency. So do not mix costs of very different magnitude, such as 1 and 10^20.
#[derive(Debug, Clone)]
pub struct CostAware {
    entries: Vec<Entry>,
    leaves: Leaves,
    inflation: f64,
    uses: u64,
}

/// The order of `leaves`.
fn by_eviction(entries: &[Entry]) -> impl Fn(BlockId, BlockId) -> bool {
    |a, b| entries[a as usize].goes_before(&entries[b as usize])
}

impl CostAware {
    /// Makes the order over `num_blocks` blocks, none of them cached or used before.
    pub fn new(num_blocks: usize) -> Result<Self, PolicyError> {
        valid_size(num_blocks)?;
        Ok(Self {
            entries: vec![Entry::NONE; num_blocks],
            leaves: Leaves::new(num_blocks),
            inflation: 0.0,
            uses: 0,
        })
    }

    /// L: the greatest H of a victim so far.
    pub fn inflation(&self) -> f64 {
        self.inflation
    }

    /// How often the contents of a block were reused; 0 for ids outside the pool.
    pub fn reuses(&self, block: BlockId) -> u32 {
        self.entries.get(block as usize).map_or(0, |entry| entry.reuses)
    }

    fn check_block(&self, block: BlockId, must: Must) -> Result<(), PolicyError> {
        must.hold(block, self.leaves.is_cached(block))
    }

    /// Makes the block the most recently used one and values it anew.
    fn mark_used(&mut self, block: BlockId) {
        self.uses += 1;
        self.entries[block as usize].used = self.uses;
        self.value(block);
    }

    fn value(&mut self, block: BlockId) {
        let entry = &mut self.entries[block as usize];
        entry.value = self.inflation + entry.worth();
    }
}

impl EvictionPolicy for CostAware {
    fn name(&self) -> &'static str {
        "cost"
    }

    fn len(&self) -> usize {
        self.leaves.len()
    }

    fn insert(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        info.validate(block, self.entries.len())?;
        self.entries[block as usize].cost = info.cost;
        self.mark_used(block);
        self.leaves
            .insert(block, info.parent, &by_eviction(&self.entries));
        Ok(())
    }

    fn touch(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let cached = self
            .leaves
            .is_cached(block)
            .ok_or(PolicyError::OutOfRange(block))?;
        let reuses = &mut self.entries[block as usize].reuses;
        *reuses = reuses.saturating_add(1);
        if cached {
            self.mark_used(block);
            self.leaves.reorder(block, &by_eviction(&self.entries));
        }
        Ok(())
    }

    fn remove(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        self.leaves.remove(block, &by_eviction(&self.entries));
        Ok(())
    }

    fn forget(&mut self, block: BlockId) -> Result<(), PolicyError> {
        self.check_block(block, Must::NotBeCached)?;
        self.entries[block as usize].reuses = 0;
        Ok(())
    }

    fn evict(&mut self) -> Result<Option<BlockId>, PolicyError> {
        let victim = self.leaves.first(&by_eviction(&self.entries));
        if let Some(block) = victim {
            self.leaves.remove(block, &by_eviction(&self.entries));
            let entry = &mut self.entries[block as usize];
            // A block that waited for its children can be worth less than they were.
            self.inflation = self.inflation.max(entry.value);
            entry.reuses = 0;
        }
        Ok(victim)
    }

    fn update(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        self.check_block(block, Must::BeCached)?;
        info.validate(block, self.entries.len())?;
        self.entries[block as usize].cost = info.cost;
        self.value(block);
        self.leaves
            .update(block, info.parent, &by_eviction(&self.entries));
        Ok(())
    }

    fn order(&self) -> Result<Vec<BlockId>, PolicyError> {
        let mut copy = self.clone();
        std::iter::from_fn(|| copy.evict().transpose()).collect()
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.entries.capacity() * size_of::<Entry>() + self.leaves.memory_bytes())
    }

    fn check(&self) -> Result<(), PolicyError> {
        if !self.leaves.is_consistent(&by_eviction(&self.entries)) {
            return Err(PolicyError::Inconsistent("heap, parents and length disagree"));
        }
        let mut entries = self.entries.iter();
        if !self.inflation.is_finite() || !entries.all(|entry| entry.value.is_finite()) {
            return Err(PolicyError::Inconsistent("a value is not a number"));
        }
        Ok(())
    }
}
