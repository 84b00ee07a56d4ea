//! Owns the map from keys to the slots that hold them. It keeps slots only and compares the keys in their cells.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::slots::Slots;
use crate::{Key, Slot};

/// 5 bytes for each place of a table that is at most seven eighths full.
#[derive(Debug)]
pub(crate) struct KeyTable {
    slots: HashTable<Slot>,
    /// Of this process, so that nobody can aim keys at one bucket.
    seed: u64,
}

/// Keys are hashes already: one multiplication spreads them under the seed.
fn bucket(seed: u64, key: Key) -> u64 {
    let (low, high) = (key as u64, (key >> 64) as u64);
    let product = u128::from(low ^ seed) * u128::from(high ^ seed.rotate_left(32) | 1);
    (product >> 64) as u64 ^ product as u64
}

impl KeyTable {
    pub(crate) fn new() -> Self {
        Self {
            slots: HashTable::new(),
            seed: RandomState::new().hash_one(0_u64),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn find(&self, cells: &Slots, key: Key) -> Option<Slot> {
        let same = |slot: &Slot| cells.cell(*slot).key == key;
        self.slots.find(bucket(self.seed, key), same).copied()
    }

    /// Enters a slot under the key of its cell, which the table does not have.
    pub(crate) fn insert(&mut self, cells: &Slots, slot: Slot) {
        let seed = self.seed;
        let place = |slot: &Slot| bucket(seed, cells.cell(*slot).key);
        self.slots.insert_unique(place(&slot), slot, place);
    }

    /// Takes a slot out; its cell still has the key that it was entered under.
    pub(crate) fn remove(&mut self, cells: &Slots, slot: Slot) {
        let place = bucket(self.seed, cells.cell(slot).key);
        if let Ok(entry) = self.slots.find_entry(place, |other| *other == slot) {
            entry.remove();
        }
    }

    /// The slots, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter().copied()
    }
}
