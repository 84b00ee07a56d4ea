//! Owns the order in which cached blocks are evicted: one trait, [`EvictionPolicy`], and four policies.
//!
//! Knows nothing about reference counts, free lists, hashes, sequences or Python. Arrays are sized once, when a
//! policy is made; no operation allocates, except `order` and `check`.
//!
//! | name | evicts first | bytes a block | per operation |
//! |---|---|---|---|
//! | `lru` ([`Lru`]) | least recently used | 8 | O(1) |
//! | `lfu` ([`Lfu`]) | least often used, with aging | 10 | O(1) |
//! | `priority+ttl` ([`PriorityTtl`]) | expired, then lowest priority, then least recently used | 48 | O(log n) |
//! | `cost` ([`CostAware`]) | least reuse x cost, with aging | 40 | O(log n) |
//!
//! # Example
//!
//! ```
//! use kvcache_eviction::{BlockInfo, policy_by_name};
//!
//! let mut policy = policy_by_name("priority+ttl", 8)?;
//! let plain = BlockInfo::default();
//! let dear = BlockInfo { priority: 10, expires_at: Some(60.0), ..plain };
//! policy.insert(0, &dear)?;
//! policy.insert(1, &plain)?;
//! policy.insert(2, &plain)?;
//! assert_eq!(policy.order()?, [1, 2, 0]);
//!
//! policy.touch(1)?; // a prefix hit takes block 1 ...
//! policy.remove(1)?;
//! policy.insert(1, &plain)?; // ... and its owner leaves again
//! assert_eq!(policy.order()?, [2, 1, 0]);
//!
//! policy.set_time(60.0)?; // the priority of block 0 has run out
//! assert_eq!(policy.evict()?, Some(0));
//! # Ok::<(), kvcache_eviction::PolicyError>(())
//! ```

mod cost_aware;
mod error;
mod heap;
mod leaves;
mod lfu;
mod links;
mod lru;
mod policy;
mod priority_ttl;
mod registry;

pub use cost_aware::CostAware;
pub use error::PolicyError;
pub use lfu::Lfu;
pub use links::{Links, List};
pub use lru::Lru;
pub use policy::{BlockId, BlockInfo, EvictionPolicy, MAX_BLOCKS, evict_verified};
pub use priority_ttl::PriorityTtl;
pub use registry::{POLICY_NAMES, policy_by_name};
