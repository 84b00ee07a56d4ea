//! Owns the errors of the cache; each variant is one Python exception.

use kvcache_blocks::PoolError;

/// Why a call was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// No open sequence has this id.
    #[error("no open sequence has the id {0}")]
    UnknownSequence(i64),
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

/// The cache only makes moves that the pool allows, so a refusal of the pool is a broken invariant.
impl From<PoolError> for CacheError {
    fn from(error: PoolError) -> Self {
        Self::Invariant(error.to_string())
    }
}
