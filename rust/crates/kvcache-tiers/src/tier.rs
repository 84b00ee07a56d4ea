//! Owns one tier: which slot holds which key, in what state, and which entry is evicted next.

use crate::key_table::KeyTable;
use crate::slots::{Cell, Life, List, NIL, Slots};
use crate::{Key, Slot, TierStats};

/// One tier. Every operation is O(1) amortised but [`forget_all`](Tier::forget_all).
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) name: String,
    pub(crate) capacity: Option<usize>,
    pub(crate) is_lost: bool,
    pub(crate) evictions: u64,
    pub(crate) slots: Slots,
    /// Arriving and resident entries.
    pub(crate) by_key: KeyTable,
    pub(crate) free: List,
    /// Resident entries without holds and pins, least recently used first.
    pub(crate) idle: List,
    pub(crate) arriving: usize,
    /// Slots in [`Life::Leaving`] or [`Life::Lost`].
    pub(crate) leaving: usize,
    pub(crate) pinned: usize,
}

impl Tier {
    pub(crate) fn new(name: String, capacity: Option<usize>) -> Self {
        Self {
            name,
            capacity,
            is_lost: false,
            evictions: 0,
            slots: Slots::default(),
            by_key: KeyTable::new(),
            free: List::new(),
            idle: List::new(),
            arriving: 0,
            leaving: 0,
            pinned: 0,
        }
    }

    fn limit(&self) -> usize {
        self.capacity.unwrap_or(NIL as usize)
    }

    /// Slots that hold nothing.
    pub(crate) fn num_free(&self) -> usize {
        self.limit() - self.slots.len() + self.free.len()
    }

    /// Slots that [`claim`](Self::claim) can give.
    pub(crate) fn available(&self) -> usize {
        self.num_free() + self.idle.len()
    }

    pub(crate) fn cell(&self, slot: Slot) -> &Cell {
        self.slots.cell(slot)
    }

    pub(crate) fn find(&self, key: Key) -> Option<Slot> {
        self.by_key.find(&self.slots, key)
    }

    pub(crate) fn resident(&self, key: Key) -> Option<Slot> {
        self.find(key)
            .filter(|slot| self.cell(*slot).life == Life::Resident)
    }

    /// Takes a slot for a key that the tier does not have, in state arriving and held once by its writer: a free slot,
    /// else that of the least recently used idle entry, whose key is returned too.
    pub(crate) fn claim(&mut self, key: Key) -> Option<(Slot, Option<Key>)> {
        let (slot, evicted) = if let Some(slot) = self.free.pop_front(&mut self.slots) {
            (slot, None)
        } else if self.slots.len() < self.limit() {
            (self.slots.grow(), None)
        } else {
            let slot = self.idle.pop_front(&mut self.slots)?;
            let evicted = self.cell(slot).key;
            self.by_key.remove(&self.slots, slot);
            self.evictions += 1;
            (slot, Some(evicted))
        };
        let cell = self.slots.cell_mut(slot);
        (cell.key, cell.holds, cell.life) = (key, 1, Life::Arriving);
        self.arriving += 1;
        self.by_key.insert(&self.slots, slot);
        Some((slot, evicted))
    }

    /// Makes an arriving entry resident; its writer still holds it. False where the entry was dropped meanwhile.
    pub(crate) fn arrive(&mut self, slot: Slot) -> bool {
        let cell = self.slots.cell_mut(slot);
        if cell.life != Life::Arriving {
            return false;
        }
        cell.life = Life::Resident;
        self.arriving -= 1;
        true
    }

    /// Adds a transfer that holds a resident entry; false where there are too many.
    pub(crate) fn hold(&mut self, slot: Slot) -> bool {
        let Some(holds) = self.cell(slot).holds.checked_add(1) else {
            return false;
        };
        self.unlist(slot);
        self.slots.cell_mut(slot).holds = holds;
        true
    }

    /// Takes the hold of a transfer away; the last one leaves the slot idle (most recently used) or free.
    pub(crate) fn unhold(&mut self, slot: Slot) {
        let cell = self.slots.cell_mut(slot);
        cell.holds -= 1;
        if cell.holds == 0 && matches!(cell.life, Life::Leaving | Life::Lost) {
            self.leaving -= 1;
            self.give_back(slot);
        } else if cell.is_idle() {
            self.idle.push_back(&mut self.slots, slot);
        }
    }

    /// Adds a pin to a resident entry; false where there are too many.
    pub(crate) fn pin(&mut self, slot: Slot) -> bool {
        let Some(pins) = self.cell(slot).pins.checked_add(1) else {
            return false;
        };
        self.unlist(slot);
        self.pinned += usize::from(pins == 1);
        self.slots.cell_mut(slot).pins = pins;
        true
    }

    /// Takes a pin away; false where there is none.
    pub(crate) fn unpin(&mut self, slot: Slot) -> bool {
        let cell = self.slots.cell_mut(slot);
        let Some(pins) = cell.pins.checked_sub(1) else {
            return false;
        };
        cell.pins = pins;
        if pins == 0 {
            self.pinned -= 1;
            if self.cell(slot).is_idle() {
                self.idle.push_back(&mut self.slots, slot);
            }
        }
        true
    }

    /// Makes an idle entry the most recently used one.
    pub(crate) fn touch(&mut self, slot: Slot) {
        if self.cell(slot).is_idle() {
            self.idle.remove(&mut self.slots, slot);
            self.idle.push_back(&mut self.slots, slot);
        }
    }

    /// Drops an entry that can be found, pins and all. Its slot is free at once, or stays in state `life` until its
    /// transfers have ended.
    pub(crate) fn forget(&mut self, slot: Slot, life: Life) {
        self.unlist(slot);
        self.by_key.remove(&self.slots, slot);
        let cell = self.slots.cell_mut(slot);
        self.arriving -= usize::from(cell.life == Life::Arriving);
        self.pinned -= usize::from(cell.pins > 0);
        cell.pins = 0;
        if cell.holds == 0 {
            self.give_back(slot);
        } else {
            cell.life = life;
            self.leaving += 1;
        }
    }

    /// Drops every entry, in the order of slots and in time linear in those ever used; what transfers hold is lost.
    pub(crate) fn forget_all(&mut self) {
        for slot in 0..self.slots.len() as Slot {
            match self.cell(slot).life {
                Life::Arriving | Life::Resident => self.forget(slot, Life::Lost),
                Life::Leaving => self.slots.cell_mut(slot).life = Life::Lost,
                Life::Free | Life::Lost => {}
            }
        }
    }

    pub(crate) fn stats(&self) -> TierStats {
        TierStats {
            name: self.name.clone(),
            capacity: self.capacity,
            is_lost: self.is_lost,
            resident: self.by_key.len() - self.arriving,
            arriving: self.arriving,
            leaving: self.leaving,
            free: self.num_free(),
            idle: self.idle.len(),
            pinned: self.pinned,
            evictions: self.evictions,
        }
    }

    fn unlist(&mut self, slot: Slot) {
        if self.cell(slot).is_idle() {
            self.idle.remove(&mut self.slots, slot);
        }
    }

    fn give_back(&mut self, slot: Slot) {
        self.slots.cell_mut(slot).life = Life::Free;
        self.free.push_back(&mut self.slots, slot);
    }
}
