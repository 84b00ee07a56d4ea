//! Owns the seam: what a policy is told about blocks, and what may be asked of it.

use std::fmt::Debug;

use crate::PolicyError;

/// Index of a block in its pool.
pub type BlockId = u32;

/// The most blocks of a policy, as of a pool; the ids above it serve as marks in the arrays.
pub const MAX_BLOCKS: usize = i32::MAX as usize;

/// What is known about a block when it becomes cached. Each policy looks at some of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockInfo {
    /// Blocks of lower priority are evicted earlier.
    pub priority: i32,
    /// When the block stops being worth keeping, on the clock of
    /// [`set_time`](EvictionPolicy::set_time); it is expired once `expires_at <= now`. None: never. Finite.
    pub expires_at: Option<f64>,
    /// What it would cost to compute the block again, in any unit that is the same for all blocks, for example
    /// tokens x attention length. Finite, not negative.
    pub cost: f32,
    /// The block before this one in its chain. Contents can only be found through those before them, so policies
    /// whose order could differ from the order of release evict a block after the cached blocks that name it here.
    pub parent: Option<BlockId>,
}

impl Default for BlockInfo {
    /// Priority 0, no expiry, cost 1, no parent.
    fn default() -> Self {
        Self {
            priority: 0,
            expires_at: None,
            cost: 1.0,
            parent: None,
        }
    }
}

impl BlockInfo {
    /// Checks the ranges of all fields, those that a policy ignores included: what is accepted does not depend on
    /// the policy.
    pub fn validate(&self, block: BlockId, num_blocks: usize) -> Result<(), PolicyError> {
        let bad = |field, value, expected| {
            Err(PolicyError::BadInfo {
                block,
                field,
                value,
                expected,
            })
        };
        if !(self.cost.is_finite() && self.cost >= 0.0) {
            return bad("cost", f64::from(self.cost), "finite and not negative");
        }
        if let Some(at) = self.expires_at
            && !at.is_finite()
        {
            return bad("expires_at", at, "finite");
        }
        if let Some(parent) = self.parent
            && (parent as usize >= num_blocks || parent == block)
        {
            return bad("parent", f64::from(parent), "another block of the pool");
        }
        Ok(())
    }
}

/// An order of eviction over the cached blocks of one pool: those without an owner whose contents can be found.
///
/// # What the caller does
///
/// | event | calls |
/// |---|---|
/// | the last owner of a findable block leaves | [`insert`](Self::insert) |
/// | a prefix hit takes a cached block | [`touch`](Self::touch), [`remove`](Self::remove) |
/// | a prefix hit shares a block in use | [`touch`](Self::touch) |
/// | a block is needed | [`evict`](Self::evict), best through [`evict_verified`] |
/// | contents of a cached block become unfindable | [`remove`](Self::remove), [`forget`](Self::forget) |
/// | contents of a block in use become unfindable | [`forget`](Self::forget) |
/// | priority, expiry, cost or parent of a cached block change | [`update`](Self::update) |
/// | before evicting, where expiry is used | [`set_time`](Self::set_time) |
///
/// A chain is given back deepest block first, and touched deepest block first: on ties the block inserted earlier
/// goes first, so a chain is evicted from its end.
///
/// How often contents were reused (`touch`) is remembered through `remove` and `insert`, until `evict` or `forget`.
///
/// # Policies from elsewhere
///
/// Every method may fail, so a policy in another language fits; only `name`, `len`, `insert`, `remove`, `evict` and
/// `order` must exist. Such a policy can also be wrong, so callers verify victims ([`evict_verified`]).
pub trait EvictionPolicy: Send + Debug {
    /// The name, as in [`POLICY_NAMES`](crate::POLICY_NAMES) for the policies of this crate.
    fn name(&self) -> &str;

    /// Number of cached blocks.
    fn len(&self) -> usize;

    /// Whether no block is cached.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a block that became cached; it is the most recently used one.
    ///
    /// Errors: `OutOfRange`, `IsCached`, `BadInfo`.
    fn insert(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError>;

    /// Counts one reuse of the contents of a block. If the block is cached, it also becomes the most recently used.
    ///
    /// Errors: `OutOfRange`. A policy without interest in reuse need not do anything.
    fn touch(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let _ = block;
        Ok(())
    }

    /// Takes out a cached block, because it has an owner again or is dropped. Its reuse count stays.
    ///
    /// Errors: `OutOfRange`, `NotCached`.
    fn remove(&mut self, block: BlockId) -> Result<(), PolicyError>;

    /// Clears the reuse count of a block that is not cached: its contents are gone.
    ///
    /// Errors: `OutOfRange`, `IsCached`.
    fn forget(&mut self, block: BlockId) -> Result<(), PolicyError> {
        let _ = block;
        Ok(())
    }

    /// Takes out the block to give to a new owner, and forgets its contents; None if no block is cached.
    ///
    /// Errors: only those of policies from elsewhere.
    fn evict(&mut self) -> Result<Option<BlockId>, PolicyError>;

    /// Replaces what is known about a cached block; its recency and its reuse count stay.
    ///
    /// Errors: `OutOfRange`, `NotCached`, `BadInfo`.
    fn update(&mut self, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
        let _ = (block, info);
        Ok(())
    }

    /// Tells the time in seconds, on any clock that does not go back. It starts at negative infinity, so nothing is
    /// expired before the first call.
    ///
    /// Errors: `BadTime`: not finite or, in policies that use the time, earlier than before.
    fn set_time(&mut self, now_s: f64) -> Result<(), PolicyError> {
        if now_s.is_finite() {
            return Ok(());
        }
        Err(PolicyError::BadTime {
            now_s,
            before_s: f64::NEG_INFINITY,
        })
    }

    /// The cached blocks in the order in which `evict` would give them if nothing else happened. For inspection and
    /// checks: linear time at least.
    fn order(&self) -> Result<Vec<BlockId>, PolicyError>;

    /// Bytes of the policy's arrays as they are allocated; None where that is not known.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }

    /// Checks every invariant of the policy's arrays, in time linear in the number of blocks.
    ///
    /// Errors: `Inconsistent`.
    fn check(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// Evicts and verifies the answer against what the caller knows, for policies that cannot be trusted.
///
/// `num_cached` is the caller's count of cached blocks, and `is_cached` its opinion on a block; `is_cached` must
/// take ids outside the pool. After `WrongVictim` or `NoVictim` the order is unusable; the caller's state is not.
///
/// ```
/// use kvcache_eviction::{BlockInfo, EvictionPolicy, Lru, PolicyError, evict_verified};
///
/// let mut policy = Lru::new(4)?;
/// policy.insert(2, &BlockInfo::default())?;
/// assert_eq!(evict_verified(&mut policy, 1, |block| block == 2)?, Some(2));
/// // The caller believes that block 1 is still cached.
/// let error = evict_verified(&mut policy, 1, |block| block == 1);
/// assert!(matches!(error, Err(PolicyError::NoVictim { .. })));
/// # Ok::<(), PolicyError>(())
/// ```
pub fn evict_verified(
    policy: &mut dyn EvictionPolicy,
    num_cached: usize,
    is_cached: impl FnOnce(BlockId) -> bool,
) -> Result<Option<BlockId>, PolicyError> {
    match policy.evict()? {
        None if num_cached > 0 => Err(PolicyError::NoVictim {
            policy: policy.name().to_owned(),
            cached: num_cached,
        }),
        Some(block) if !is_cached(block) => Err(PolicyError::WrongVictim {
            policy: policy.name().to_owned(),
            block,
        }),
        victim => Ok(victim),
    }
}

/// Whether a policy can be made for so many blocks.
pub(crate) fn valid_size(num_blocks: usize) -> Result<(), PolicyError> {
    if num_blocks == 0 || num_blocks > MAX_BLOCKS {
        return Err(PolicyError::BadSize(num_blocks));
    }
    Ok(())
}

/// The state a block must be in for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Must {
    BeCached,
    NotBeCached,
}

impl Must {
    /// Checks `cached`, the state of a block: None for ids outside the pool.
    pub(crate) fn hold(self, block: BlockId, cached: Option<bool>) -> Result<(), PolicyError> {
        match (self, cached) {
            (_, None) => Err(PolicyError::OutOfRange(block)),
            (Self::BeCached, Some(false)) => Err(PolicyError::NotCached(block)),
            (Self::NotBeCached, Some(true)) => Err(PolicyError::IsCached(block)),
            _ => Ok(()),
        }
    }
}
