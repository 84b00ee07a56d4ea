//! Owns sequences over a block pool: their tokens, block tables, prefix hits, copies on write.
//!
//! Knows nothing about devices, schedulers or Python. [`KvCache`] is the whole public surface: a batch of rows is
//! one call, and every error leaves the state as it was.

mod cache;
mod check;
mod error;
mod grow;
mod sequence;

pub use cache::{BlockCopy, CacheConfig, KvCache, Stats};
pub use error::CacheError;
pub use grow::{Growth, Replacement};
pub use kvcache_prefix::{ChainKeys, Media};
pub use sequence::Sequence;
