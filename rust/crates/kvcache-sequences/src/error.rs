//! Owns the errors of the cache; each variant is one Python exception.

use kvcache_blocks::{PolicyError, PoolError};
use kvcache_tiers::TierError;

/// Why a call was refused. Nothing was changed, except that an eviction policy which fails may leave cached blocks
/// forgotten.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CacheError {
    /// No open sequence has this id.
    #[error("no open sequence has the id {0}")]
    UnknownSequence(i64),
    /// No pin has this id, or it has expired.
    #[error("no pin has the id {0}")]
    UnknownPin(i64),
    /// An argument is outside what it may be.
    #[error("{field} = {value}: {reason}")]
    InvalidArgument {
        /// Name of the argument.
        field: &'static str,
        /// Its value, or that of the offending element.
        value: i64,
        /// What it should have been.
        reason: String,
    },
    /// A pin would hold more blocks than its tenant, or all pins together, may.
    #[error("{wanted} blocks more would be pinned, {room} may be")]
    PinQuota {
        /// Blocks that the pin would have added.
        wanted: usize,
        /// Blocks that may still be pinned.
        room: usize,
    },
    /// The eviction policy failed.
    #[error(transparent)]
    Policy(PolicyError),
    /// The state contradicts itself: an error of this library.
    #[error("{0}")]
    Invariant(String),
}

impl CacheError {
    /// Builds an [`InvalidArgument`](Self::InvalidArgument).
    pub fn invalid(field: &'static str, value: impl TryInto<i64>, reason: impl Into<String>) -> Self {
        Self::InvalidArgument {
            field,
            value: value.try_into().unwrap_or(i64::MAX),
            reason: reason.into(),
        }
    }
}

/// The cache only makes moves that the pool allows, so a refusal of the pool itself is a broken invariant.
impl From<PoolError> for CacheError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Policy(error) => Self::Policy(error),
            other => Self::Invariant(other.to_string()),
        }
    }
}

/// Likewise for the index of the host tier.
impl From<TierError> for CacheError {
    fn from(error: TierError) -> Self {
        Self::Invariant(error.to_string())
    }
}
