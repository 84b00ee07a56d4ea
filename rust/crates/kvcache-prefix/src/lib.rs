//! Owns the names of cached blocks: the chained block hash and the index from names to blocks.
//!
//! Knows nothing about who holds a block, when it is evicted, or Python.

mod hash;
mod index;

pub use hash::{BlockHash, ChainKeys, HASH_VERSION, KeyError, Media, extend_chain, next_hash, root_hash};
pub use index::{BlockName, PrefixIndex};
