//! Owns the state of every block of a paged cache: reference counts, the free list and the eviction order.
//!
//! Knows nothing about tokens, hashes, sequences or Python. Every operation on one block is O(1); the memory is
//! 13 bytes a block in flat arrays, so ten million blocks are fine.
//!
//! A block is in exactly one of three states ([`BlockState`]):
//!
//! ```text
//!            allocate                    release (published)
//!   Free ───────────────▶ InUse(1..) ───────────────────────▶ Cached
//!    ▲  release (plain)     │  ▲             acquire            │ │
//!    ├──────────────────────┘  └────────────────────────────────┘ │
//!    └──────────────── unpublish, or eviction by allocate ────────┘
//! ```

mod list;
mod pool;

pub use pool::{Allocation, BlockId, BlockPool, BlockState, PoolError};
