//! Owns the refusals of the index. Nothing is changed by a refused call.

use crate::{Key, TierId, TransferId};

/// Why a call was refused. The index is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The tiers given to [`TierIndex::new`](crate::TierIndex::new) make no index.
    #[error("tiers: {0}")]
    BadTiers(String),
    /// There is no tier of this name or number.
    #[error("there is no tier {0}")]
    UnknownTier(String),
    /// No transfer in flight has this id: it never began, or has ended.
    #[error("no transfer in flight has the id {0}")]
    UnknownTransfer(TransferId),
    /// A batch names a transfer twice.
    #[error("transfer {0} comes twice")]
    TwiceTransfer(TransferId),
    /// A batch names a key twice where once is all it can mean.
    #[error("block {} comes twice", hex(.0))]
    TwiceKey(Key),
    /// The key has no resident contents where they are asked for (`None`: in no tier that would do).
    #[error("block {} is not resident {}", hex(.key), within(*.tier))]
    NotResident {
        /// The key asked for.
        key: Key,
        /// Where.
        tier: Option<TierId>,
    },
    /// The key is resident in the destination already, or on its way there.
    #[error("block {} is in tier {tier} already, or on its way there", hex(.key))]
    Present {
        /// The key that was to come.
        key: Key,
        /// The destination.
        tier: TierId,
    },
    /// Free slots and idle entries do not suffice: the others are pinned or held by transfers.
    #[error("tier {tier} has room for {available} blocks, not for {needed}")]
    NoRoom {
        /// The destination.
        tier: TierId,
        /// Slots that the call needs.
        needed: usize,
        /// Slots that are free or could be freed.
        available: usize,
    },
    /// The tier is gone until [`TierIndex::restore_tier`](crate::TierIndex::restore_tier).
    #[error("tier {0} was lost")]
    TierLost(TierId),
    /// Source and destination are the same tier.
    #[error("a move within tier {0} moves nothing")]
    SameTier(TierId),
    /// The entry is pinned, so a move may not drop it.
    #[error("block {} is pinned in tier {tier}", hex(.key))]
    Pinned {
        /// The key.
        key: Key,
        /// Where it is pinned.
        tier: TierId,
    },
    /// The entry has no pin to take away.
    #[error("block {} is not pinned in tier {tier}", hex(.key))]
    NotPinned {
        /// The key.
        key: Key,
        /// Where.
        tier: TierId,
    },
    /// The entry has as many pins or readers as can be counted.
    #[error("block {} has too many pins or readers in tier {tier}", hex(.key))]
    TooMany {
        /// The key.
        key: Key,
        /// Where.
        tier: TierId,
    },
    /// The state contradicts itself: an error of this library.
    #[error("tier index: {0}")]
    Invariant(String),
}

/// A key as the hash format writes it: 16 bytes, the first byte first.
fn hex(key: &Key) -> String {
    format!("{:032x}", key.swap_bytes())
}

fn within(tier: Option<TierId>) -> String {
    tier.map_or_else(
        || "in any tier that would do".into(),
        |tier| format!("in tier {tier}"),
    )
}
