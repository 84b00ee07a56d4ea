//! Owns sequences over a block pool: their tokens, block tables, prefix hits, copies on write, pins, the host tier.
//!
//! Knows nothing about devices, schedulers or Python. [`KvCache`] is the whole public surface: a batch of rows is
//! one call, and every error leaves the state as it was.

mod cache;
mod check;
mod commit;
mod error;
mod events;
mod groups;
mod grow;
mod hit;
mod host;
mod ids;
mod partial;
mod pins;
mod sequence;
mod tenants;
mod transfers;

pub use cache::{CacheConfig, KvCache, Stats};
pub use error::CacheError;
pub use groups::{GroupSpec, Keeps, Layout};
pub use grow::{Growth, Replacement};
pub use kvcache_events::{Batch, Event, EventError};
pub use kvcache_eviction::{BlockInfo, EvictionPolicy, POLICY_NAMES, PolicyError, policy_by_name};
pub use kvcache_prefix::{ChainKeys, Media};
pub use pins::PinId;
pub use sequence::{NO_BLOCK, Retention, Sequence};
pub use transfers::{BatchId, Transfer, Transfers};
