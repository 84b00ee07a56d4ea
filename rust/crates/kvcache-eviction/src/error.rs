//! Owns the errors of eviction policies, those of policies written elsewhere included.

use crate::BlockId;

/// What can go wrong with a policy. A policy is unchanged after every error that names bad input.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("eviction policy {0:?} is unknown; known are {known}", known = crate::POLICY_NAMES.join(", "))]
    UnknownName(String),
    /// A policy was asked for no block, or for more than ids can name.
    #[error("num_blocks: a policy orders 1 to {max} blocks, not {0}", max = crate::MAX_BLOCKS)]
    BadSize(usize),
    /// The block id is not below the number of blocks.
    #[error("block {0} is outside the pool")]
    OutOfRange(BlockId),
    /// The block is cached, and the operation is for blocks that are not.
    #[error("block {0} is cached already")]
    IsCached(BlockId),
    /// The block is not cached, and the operation is for blocks that are.
    #[error("block {0} is not cached")]
    NotCached(BlockId),
    /// A field of a [`BlockInfo`](crate::BlockInfo) has a value that no order can be made of.
    #[error("block {block}: {field} must be {expected}, not {value}")]
    BadInfo {
        /// The block that the information was for.
        block: BlockId,
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// The accepted range, in words.
        expected: &'static str,
    },
    /// The time is not a finite number, or earlier than the time set before.
    #[error("now_s must be finite and at least {before_s}, not {now_s}")]
    BadTime {
        /// The time given, in seconds.
        now_s: f64,
        /// The earliest time accepted, in seconds.
        before_s: f64,
    },
    /// The policy named a victim that is not cached; see [`evict_verified`](crate::evict_verified).
    #[error("eviction policy {policy:?} named block {block}, which is not cached")]
    WrongVictim {
        /// Name of the policy.
        policy: String,
        /// The block it named.
        block: BlockId,
    },
    /// The policy named no victim although blocks are cached; see [`evict_verified`](crate::evict_verified).
    #[error("eviction policy {policy:?} named no block although {cached} are cached")]
    NoVictim {
        /// Name of the policy.
        policy: String,
        /// How many blocks are cached.
        cached: usize,
    },
    /// A policy that lives elsewhere (in Python, for example) failed.
    #[error("eviction policy {policy:?} failed: {reason}")]
    Failed {
        /// Name of the policy.
        policy: String,
        /// What it said.
        reason: String,
    },
    /// The arrays contradict each other; only [`EvictionPolicy::check`](crate::EvictionPolicy::check) says so.
    #[error("eviction policy: {0}")]
    Inconsistent(&'static str),
}
