//! Owns what can happen to cached blocks, as values.

use std::sync::Arc;

use crate::EventError;

/// A block hash: the 16 bytes of its wire format.
pub type Key = [u8; 16];

/// A tier or an adapter; cloning one copies a pointer.
pub type Name = Arc<str>;

/// Blocks of one chain that can now be found in a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The blocks in the order of the chain: each is the parent of the next. At least one.
    pub keys: Vec<Key>,
    /// The parent of the first block; `None` where it starts its sequence.
    pub parent: Option<Key>,
    /// The tokens of all the blocks, `keys.len() * block_size` of them; or none, where they are not told.
    pub token_ids: Vec<u32>,
    /// Tokens of a block, at least 1.
    pub block_size: u32,
    /// The KV group of the blocks.
    pub group: u32,
    /// Where they are: "device", "host", …
    pub tier: Name,
    /// Content version of the adapter, if the blocks depend on one.
    pub lora: Option<Name>,
    /// Whether the blocks depend on more than tokens and adapter: a salt, media. Tokens alone then find nothing.
    pub has_extra_keys: bool,
}

/// Something that happened to cached blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks can now be found in a tier. Storing what is there already changes nothing.
    Stored(Stored),
    /// Blocks cannot be found in a tier any more. Removing what is not there changes nothing.
    Removed {
        /// At least one, in no order.
        keys: Vec<Key>,
        /// Their KV group.
        group: u32,
        /// Where they were.
        tier: Name,
    },
    /// Blocks can now be found in another tier.
    Moved {
        /// At least one, in no order.
        keys: Vec<Key>,
        /// Their KV group.
        group: u32,
        /// Where they were read.
        from: Name,
        /// Where they are now.
        to: Name,
        /// Whether `from` still has them.
        is_copy: bool,
    },
    /// Nothing can be found any more, in one tier or (`None`) anywhere.
    Cleared {
        /// The tier.
        tier: Option<Name>,
    },
}

const NO_KEYS: EventError = invalid("keys", "must not be empty");

const fn invalid(field: &'static str, reason: &'static str) -> EventError {
    EventError::Invalid { field, reason }
}

fn check_name(field: &'static str, name: &Name) -> Result<(), EventError> {
    if name.is_empty() {
        return Err(invalid(field, "must not be empty"));
    }
    Ok(())
}

impl Event {
    /// Checks what the types do not say, in constant time.
    pub fn validate(&self) -> Result<(), EventError> {
        match self {
            Self::Stored(stored) => stored.validate(),
            Self::Removed { keys, tier, .. } => {
                if keys.is_empty() {
                    return Err(NO_KEYS);
                }
                check_name("tier", tier)
            }
            Self::Moved { keys, from, to, .. } => {
                if keys.is_empty() {
                    return Err(NO_KEYS);
                }
                if from == to {
                    return Err(invalid("to", "must not be the tier moved from"));
                }
                check_name("from", from).and(check_name("to", to))
            }
            Self::Cleared { tier } => tier.as_ref().map_or(Ok(()), |tier| check_name("tier", tier)),
        }
    }

    /// Number of blocks that the event names.
    pub fn num_keys(&self) -> usize {
        match self {
            Self::Stored(Stored { keys, .. }) | Self::Removed { keys, .. } | Self::Moved { keys, .. } => {
                keys.len()
            }
            Self::Cleared { .. } => 0,
        }
    }
}

impl Stored {
    fn validate(&self) -> Result<(), EventError> {
        if self.keys.is_empty() {
            return Err(NO_KEYS);
        }
        if self.block_size == 0 {
            return Err(invalid("block_size", "must be at least 1"));
        }
        let full = self.keys.len().checked_mul(self.block_size as usize);
        if !self.token_ids.is_empty() && full != Some(self.token_ids.len()) {
            return Err(invalid(
                "token_ids",
                "must be block_size tokens for each key, or none",
            ));
        }
        check_name("tier", &self.tier)
    }
}

/// Consecutive events of one log, or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Which life of the cache this is: a number that grows from start to start.
    pub epoch: u64,
    /// Number of the first event; for a snapshot, of the first event after it.
    pub seq: u64,
    /// Whether the events rebuild the state from nothing; they then have no numbers.
    pub is_snapshot: bool,
    /// The events, oldest first.
    pub events: Vec<Event>,
}

impl Batch {
    /// Number of the event that comes after this batch.
    pub fn next_seq(&self) -> u64 {
        let numbered = if self.is_snapshot { 0 } else { self.events.len() };
        self.seq.saturating_add(numbered as u64)
    }
}
