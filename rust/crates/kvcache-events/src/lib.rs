//! Owns the log of cache events: sequence numbers, replay buffer, wire format.
//!
//! Knows nothing about caches, clocks, sockets or Python: a cache pushes what happened to its blocks, a transport sends
//! batches, and a follower (a router, an indexer) that applies them in order knows which blocks the cache holds.
//!
//! Events are numbered from 0 without holes. A follower keeps the number of the event that it wants next and asks with
//! [`EventLog::since`]. One that is too far behind is told so ([`EventError::Gap`]) and starts again from a snapshot:
//! a [`Batch`] whose events rebuild the state from nothing, made by whoever owns the state. The epoch of a log tells a
//! follower that the cache was started anew.
//!
//! Cost: `push` is O(1) amortised, beside the event itself; `since` is linear in what it returns, `drain` moves it;
//! `encode` and `decode` are linear in bytes. A disabled log answers `push_with` by one comparison and never builds
//! the event. Memory: see [`EventLog::new`].

mod error;
mod event;
mod log;
mod msgpack;
mod wire;

pub use error::EventError;
pub use event::{Batch, Event, Key, Name, Stored};
pub use log::EventLog;
pub use wire::{WIRE_VERSION, decode, encode};
