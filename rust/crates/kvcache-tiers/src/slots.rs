//! Owns the slots of one tier as a slab, and the two lists threaded through it: free slots and idle entries.

use crate::{Key, Slot};

/// "No slot" in a link; tiers have fewer than `u32::MAX` slots.
pub(crate) const NIL: Slot = Slot::MAX;

/// What a slot is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Holds nothing.
    Free,
    /// A transfer writes it.
    Arriving,
    /// Its contents can be found.
    Resident,
    /// Its contents cannot be found any more, but are good until the transfers that hold it have ended.
    Leaving,
    /// Its contents are bad; held until its transfers have ended.
    Lost,
}

/// One slot; 32 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) key: Key,
    prev: Slot,
    next: Slot,
    /// Transfers in flight that read or write the slot.
    pub(crate) holds: u32,
    pub(crate) pins: u16,
    pub(crate) life: Life,
}

impl Cell {
    /// Whether the entry may be evicted, which is when it is in the list of idle entries.
    pub(crate) fn is_idle(&self) -> bool {
        self.life == Life::Resident && self.holds == 0 && self.pins == 0
    }
}

/// All slots that were ever used; grows by one when none is free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    cells: Vec<Cell>,
}

impl Slots {
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn cell(&self, slot: Slot) -> &Cell {
        &self.cells[slot as usize]
    }

    pub(crate) fn cell_mut(&mut self, slot: Slot) -> &mut Cell {
        &mut self.cells[slot as usize]
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        (slot as usize) < self.cells.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Cell)> {
        self.cells
            .iter()
            .enumerate()
            .map(|(slot, cell)| (slot as Slot, cell))
    }

    /// Adds a free slot that is in no list.
    pub(crate) fn grow(&mut self) -> Slot {
        self.cells.push(Cell {
            key: 0,
            prev: NIL,
            next: NIL,
            holds: 0,
            pins: 0,
            life: Life::Free,
        });
        (self.cells.len() - 1) as Slot
    }
}

/// One list: its ends and its length. A slot is in at most one list.
#[derive(Debug)]
pub(crate) struct List {
    head: Slot,
    tail: Slot,
    len: usize,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_back(&mut self, slots: &mut Slots, slot: Slot) {
        let cell = slots.cell_mut(slot);
        (cell.prev, cell.next) = (self.tail, NIL);
        if self.tail == NIL {
            self.head = slot;
        } else {
            slots.cell_mut(self.tail).next = slot;
        }
        self.tail = slot;
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self, slots: &mut Slots) -> Option<Slot> {
        let slot = self.head;
        if slot == NIL {
            return None;
        }
        self.remove(slots, slot);
        Some(slot)
    }

    /// Takes a slot out of this list; the caller knows that it is in it.
    pub(crate) fn remove(&mut self, slots: &mut Slots, slot: Slot) {
        let Cell { prev, next, .. } = *slots.cell(slot);
        if prev == NIL {
            self.head = next;
        } else {
            slots.cell_mut(prev).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            slots.cell_mut(next).prev = prev;
        }
        let cell = slots.cell_mut(slot);
        (cell.prev, cell.next) = (NIL, NIL);
        self.len -= 1;
    }

    /// The slots from front to back; stops after `len` of them, so a cycle cannot hang a check.
    pub(crate) fn iter<'a>(&self, slots: &'a Slots) -> impl Iterator<Item = Slot> + use<'a> {
        let mut at = self.head;
        (0..self.len).map_while(move |_| {
            let slot = at;
            at = slots.cells.get(slot as usize)?.next;
            Some(slot)
        })
    }

    /// Whether forward links, backward links, ends and length tell the same story.
    pub(crate) fn is_consistent(&self, slots: &Slots) -> bool {
        let mut before = NIL;
        let mut count = 0;
        for slot in self.iter(slots) {
            if slots.cell(slot).prev != before {
                return false;
            }
            before = slot;
            count += 1;
        }
        let ends = before == self.tail && (before == NIL || slots.cell(before).next == NIL);
        ends && count == self.len
    }
}
