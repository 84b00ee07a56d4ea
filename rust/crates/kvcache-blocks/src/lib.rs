//! Owns the state of every block of a paged cache: reference counts, the free list, who is charged for what.
//!
//! Knows nothing about tokens, hashes, sequences or Python; the order of eviction is a policy of `kvcache-eviction`.
//! Every operation on one block is O(1) beside the policy's; the memory is 13 bytes a block in flat arrays, the
//! policy's own, and 8 more once an account has a quota. Ten million blocks are fine.
//!
//! A block is in exactly one of three states ([`BlockState`]):
//!
//! ```text
//!            allocate                    release (published)
//!   Free ───────────────▶ InUse(1..) ───────────────────────▶ Cached
//!    ▲  release (plain)     │  ▲        acquire, reuse          │ │
//!    ├──────────────────────┘  └────────────────────────────────┘ │
//!    └──────────────── unpublish, or eviction by allocate ────────┘
//! ```

mod accounts;
mod error;
mod pool;

pub use accounts::AccountId;
pub use error::PoolError;
pub use kvcache_eviction::{BlockId, BlockInfo, EvictionPolicy, PolicyError};
pub use pool::{Allocation, BlockPool, BlockState, Released};
