//! Owns the errors of the pool.

use kvcache_eviction::PolicyError;

use crate::{BlockId, BlockPool};

/// A misuse of the pool, or a failure of its policy. The pool is unchanged after any of them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PoolError {
    /// The pool was asked for no block, or for more than ids can name.
    #[error("a pool holds 1 to {max} blocks, not {0}", max = BlockPool::MAX_BLOCKS)]
    BadSize(usize),
    /// The block id is not below the number of blocks.
    #[error("block {0} is outside the pool")]
    OutOfRange(BlockId),
    /// The block is free, so it has no contents to take or give back.
    #[error("block {0} is free")]
    IsFree(BlockId),
    /// The block has no owner, so there is no reference to give back.
    #[error("block {0} is not in use")]
    NotInUse(BlockId),
    /// The block has as many owners as can be counted.
    #[error("block {0} has too many references")]
    TooManyReferences(BlockId),
    /// The eviction policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The arrays contradict each other; only [`BlockPool::check`] says so.
    #[error("block pool: {0}")]
    Inconsistent(&'static str),
}
