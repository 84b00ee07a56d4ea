//! Owns the index over all tiers: look-ups, contents put in and taken out, pins, recency, counters.

use std::collections::HashMap;

use crate::flight::Flight;
use crate::slots::{Life, NIL};
use crate::tier::Tier;
use crate::{TierError, TransferId};

/// The name of a block's contents, the same in every tier: the 16 bytes of a block hash, read little endian.
pub type Key = u128;

/// Index of a slot in its tier.
pub type Slot = u32;

/// Position of a tier; 0 is the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierId(pub u8);

impl std::fmt::Display for TierId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a tier is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// Its name, unique in the index.
    pub name: String,
    /// Blocks that it holds; `None` where it never fills (slots are then numbered up to 2^32 - 2).
    pub capacity: Option<usize>,
}

/// A slot of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The tier.
    pub tier: TierId,
    /// The slot in it.
    pub slot: Slot,
}

/// The state of an entry that can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A transfer writes it.
    Arriving,
    /// Its contents are there.
    Resident,
}

/// An entry: the contents of one key in one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Where the contents are, or will be.
    pub place: Place,
    /// Whether they are there.
    pub phase: Phase,
    /// Transfers in flight that read it.
    pub readers: u32,
    /// Pins on it.
    pub pins: u16,
}

/// What [`TierIndex::insert`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// The slot of the new entry.
    pub slot: Slot,
    /// The key that was evicted from the tier to make room.
    pub evicted: Option<Key>,
}

/// Counters of a tier. `resident + arriving + leaving + free` is its capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierStats {
    /// Its name.
    pub name: String,
    /// Blocks that it holds; `None` where it never fills.
    pub capacity: Option<usize>,
    /// Whether it was lost and not restored.
    pub is_lost: bool,
    /// Entries whose contents are there.
    pub resident: usize,
    /// Entries that a transfer writes.
    pub arriving: usize,
    /// Slots of dropped entries that wait for their transfers to end.
    pub leaving: usize,
    /// Slots that hold nothing.
    pub free: usize,
    /// Resident entries that nobody reads or pins: these can be evicted.
    pub idle: usize,
    /// Resident entries with a pin.
    pub pinned: usize,
    /// Entries evicted to make room, since the index was made.
    pub evictions: u64,
}

/// Which blocks are where. See the crate's documentation for the states and the costs.
#[derive(Debug)]
pub struct TierIndex {
    pub(crate) tiers: Vec<Tier>,
    pub(crate) flights: HashMap<TransferId, Flight>,
    pub(crate) next_id: TransferId,
}

impl TierIndex {
    /// The most tiers of an index.
    pub const MAX_TIERS: usize = 16;

    /// Makes an empty index over these tiers, fastest first. Slots take memory when they are first used.
    pub fn new(tiers: impl IntoIterator<Item = TierConfig>) -> Result<Self, TierError> {
        let mut made: Vec<Tier> = Vec::new();
        for TierConfig { name, capacity } in tiers {
            if capacity.is_some_and(|blocks| blocks == 0 || blocks >= NIL as usize) {
                let reason = format!("the capacity of {name:?} must be 1 to 2^32 - 2 blocks");
                return Err(TierError::BadTiers(reason));
            }
            if name.is_empty() || made.iter().any(|tier| tier.name == name) {
                let reason = format!("names must be unique and not empty, not {name:?}");
                return Err(TierError::BadTiers(reason));
            }
            made.push(Tier::new(name, capacity));
        }
        if made.is_empty() || made.len() > Self::MAX_TIERS {
            let reason = format!("there must be 1 to {}, not {}", Self::MAX_TIERS, made.len());
            return Err(TierError::BadTiers(reason));
        }
        Ok(Self {
            tiers: made,
            flights: HashMap::new(),
            next_id: 0,
        })
    }

    /// Number of tiers.
    pub fn num_tiers(&self) -> usize {
        self.tiers.len()
    }

    /// The tier of this name.
    pub fn tier(&self, name: &str) -> Result<TierId, TierError> {
        let position = self.tiers.iter().position(|tier| tier.name == name);
        position.map_or_else(
            || Err(TierError::UnknownTier(format!("{name:?}"))),
            |position| Ok(TierId(position as u8)),
        )
    }

    /// The name of a tier.
    pub fn name(&self, tier: TierId) -> Result<&str, TierError> {
        self.get(tier).map(|tier| tier.name.as_str())
    }

    pub(crate) fn get(&self, tier: TierId) -> Result<&Tier, TierError> {
        let unknown = || TierError::UnknownTier(tier.to_string());
        self.tiers.get(tier.0 as usize).ok_or_else(unknown)
    }

    pub(crate) fn get_mut(&mut self, tier: TierId) -> Result<&mut Tier, TierError> {
        let unknown = || TierError::UnknownTier(tier.to_string());
        self.tiers.get_mut(tier.0 as usize).ok_or_else(unknown)
    }

    /// A tier that new contents may go to.
    pub(crate) fn get_open(&mut self, tier: TierId) -> Result<&mut Tier, TierError> {
        let open = self.get_mut(tier)?;
        if open.is_lost {
            return Err(TierError::TierLost(tier));
        }
        Ok(open)
    }

    /// The tiers from fastest to slowest.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..self.tiers.len() as u8).map(TierId)
    }

    /// Where a key is resident, among these tiers, the first that has it.
    pub(crate) fn first_resident(&self, key: Key, tiers: impl Iterator<Item = TierId>) -> Option<Place> {
        tiers
            .into_iter()
            .find_map(|tier| self.resident(key, tier).map(|slot| Place { tier, slot }))
    }

    pub(crate) fn resident(&self, key: Key, tier: TierId) -> Option<Slot> {
        self.tiers.get(tier.0 as usize)?.resident(key)
    }

    /// Slot of a resident entry.
    pub(crate) fn require(&self, key: Key, tier: TierId) -> Result<Slot, TierError> {
        let missing = TierError::NotResident {
            key,
            tier: Some(tier),
        };
        self.get(tier)?.resident(key).ok_or(missing)
    }

    /// The fastest tier where the key is resident. It does not count as a use: [`touch`](Self::touch) does.
    pub fn lookup(&self, key: Key) -> Option<Place> {
        self.first_resident(key, self.ids())
    }

    /// Walks a chain of keys as long as each is resident somewhere: the fastest place of each.
    pub fn locate(&self, keys: &[Key]) -> Vec<Place> {
        keys.iter().map_while(|key| self.lookup(*key)).collect()
    }

    /// Everything that is resident in a tier, by slot; linear in the slots used so far.
    pub fn contents(&self, tier: TierId) -> Result<Vec<(Key, Slot)>, TierError> {
        let cells = self.get(tier)?.slots.iter();
        let resident = cells.filter(|(_, cell)| cell.life == Life::Resident);
        Ok(resident.map(|(slot, cell)| (cell.key, slot)).collect())
    }

    /// The entry of a key in a tier, if it is there or on its way.
    pub fn entry(&self, key: Key, tier: TierId) -> Result<Option<Entry>, TierError> {
        let found = self.get(tier)?;
        Ok(found.find(key).map(|slot| {
            let cell = found.cell(slot);
            let is_there = cell.life == Life::Resident;
            Entry {
                place: Place { tier, slot },
                phase: if is_there {
                    Phase::Resident
                } else {
                    Phase::Arriving
                },
                readers: if is_there { cell.holds } else { 0 },
                pins: cell.pins,
            }
        }))
    }

    /// Enters contents that are in the tier already, as the most recently used. The least recently used idle entry is
    /// evicted where no slot is free.
    pub fn insert(&mut self, key: Key, tier: TierId) -> Result<Inserted, TierError> {
        let (slot, evicted) = self.claim(key, tier)?;
        let filled = self.get_mut(tier)?;
        filled.arrive(slot);
        filled.unhold(slot);
        Ok(Inserted { slot, evicted })
    }

    pub(crate) fn claim(&mut self, key: Key, tier: TierId) -> Result<(Slot, Option<Key>), TierError> {
        let open = self.get_open(tier)?;
        if open.find(key).is_some() {
            return Err(TierError::Present { key, tier });
        }
        open.claim(key).ok_or(TierError::NoRoom {
            tier,
            needed: 1,
            available: 0,
        })
    }

    /// Counts as a use of these keys in every tier where they are idle. In a chain the first key ends up most recently
    /// used, so that a prefix outlives what follows it. Keys that are nowhere are passed over.
    pub fn touch(&mut self, keys: &[Key]) {
        for tier in &mut self.tiers {
            for key in keys.iter().rev() {
                if let Some(slot) = tier.resident(*key) {
                    tier.touch(slot);
                }
            }
        }
    }

    /// Keeps a resident entry from eviction until [`unpin`](Self::unpin) was called as often.
    pub fn pin(&mut self, key: Key, tier: TierId) -> Result<(), TierError> {
        let slot = self.require(key, tier)?;
        if self.get_mut(tier)?.pin(slot) {
            Ok(())
        } else {
            Err(TierError::TooMany { key, tier })
        }
    }

    /// Takes a pin away; without pins and readers the entry is the most recently used idle one.
    pub fn unpin(&mut self, key: Key, tier: TierId) -> Result<(), TierError> {
        let slot = self.require(key, tier)?;
        if self.get_mut(tier)?.unpin(slot) {
            Ok(())
        } else {
            Err(TierError::NotPinned { key, tier })
        }
    }

    /// Drops a key from every tier, pins included, and returns from how many. Transfers that read it may complete, those
    /// that would bring it into a tier of the index will fail; their slots stay taken until they have ended.
    pub fn remove(&mut self, key: Key) -> usize {
        self.tiers
            .iter_mut()
            .map(|tier| usize::from(remove_from(tier, key)))
            .sum()
    }

    /// [`remove`](Self::remove) from one tier only; false where it is not there.
    pub fn remove_from(&mut self, key: Key, tier: TierId) -> Result<bool, TierError> {
        self.get_mut(tier).map(|tier| remove_from(tier, key))
    }

    /// The next `n` idle entries of a tier in the order of their eviction, for moving them on before they are dropped.
    pub fn victims(&self, tier: TierId, n: usize) -> Result<Vec<Key>, TierError> {
        let tier = self.get(tier)?;
        let order = tier.idle.iter(&tier.slots).take(n);
        Ok(order.map(|slot| tier.cell(slot).key).collect())
    }

    /// Blocks that can be taken into a tier now: free slots and idle entries; 0 for a lost tier.
    pub fn available(&self, tier: TierId) -> Result<usize, TierError> {
        let tier = self.get(tier)?;
        Ok(if tier.is_lost { 0 } else { tier.available() })
    }

    /// The counters of a tier.
    pub fn tier_stats(&self, tier: TierId) -> Result<TierStats, TierError> {
        self.get(tier).map(Tier::stats)
    }

    /// The counters of each tier.
    pub fn stats(&self) -> Vec<TierStats> {
        self.tiers.iter().map(Tier::stats).collect()
    }
}

fn remove_from(tier: &mut Tier, key: Key) -> bool {
    let slot = tier.find(key);
    if let Some(slot) = slot {
        tier.forget(slot, Life::Leaving);
    }
    slot.is_some()
}
