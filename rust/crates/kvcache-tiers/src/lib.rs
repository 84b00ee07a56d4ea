//! Owns the index of blocks over storage tiers and the state machine of their moves.
//!
//! Knows nothing about tokens, devices, files or sockets, and copies nothing: connectors copy, and tell the index
//! when a transfer has begun and how it ended. A tier is a name and a number of slots; tiers are ordered, fastest
//! first. A block is named by a 128-bit key, which is the same in every tier.
//!
//! ```text
//!            begin_store, begin_move, …             complete
//!   (free) ─────────────────────────▶ Arriving ──────────────▶ Resident ◀─┐ complete or fail
//!      ▲                                 │ fail                 │   │ └───┴─ begin_load, begin_move, … (read)
//!      ├─────────────────────────────────┘                      │   │
//!      ├──────────── eviction (idle only), remove, lose ────────┘   │ remove, lose, clear while a transfer holds it
//!      └──── the last transfer that holds the slot ends ── (gone) ◀─┘
//! ```
//!
//! **One rule keeps copies safe:** a slot is not used again before every transfer that reads or writes it was ended by
//! [`complete`](TierIndex::complete) or [`fail`](TierIndex::fail). A transfer whose contents were lost meanwhile is
//! known to have failed, and ends like that whichever of the two is called, but it still has to be ended.
//!
//! Either end of a transfer may lie outside the index ([`TierIndex::begin_store`], [`TierIndex::begin_load`]): a cache
//! that manages the device's blocks itself uses the index for its lower tiers only.
//!
//! Cost, with `T` tiers: every operation on one key is O(T), on one slot or transfer O(1) amortised, and a batch is
//! the sum of its parts. `lose` is linear in the transfers in flight where one holds the entry; `lose_tier` and
//! `clear` are linear in the slots used so far plus the transfers in flight; `check` is linear in everything. Memory
//! is 32 bytes a slot used so far, plus 6 to 12 for each block that can be found.

mod batch;
mod check;
mod error;
mod flight;
mod index;
mod key_table;
mod loss;
mod slots;
mod tier;

pub use batch::Batch;
pub use error::TierError;
pub use flight::{Begun, Ended, Outcome, Source, Transfer, TransferId};
pub use index::{Entry, Inserted, Key, Phase, Place, Slot, TierConfig, TierId, TierIndex, TierStats};
