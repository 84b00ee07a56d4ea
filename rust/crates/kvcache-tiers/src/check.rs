//! Owns the full invariant check over slots, lists, maps and transfers.

use std::collections::HashMap;

use crate::slots::Life;
use crate::tier::Tier;
use crate::{Place, Slot, TierError, TierId, TierIndex, Transfer};

/// Transfers that read and write a slot.
type Ends = HashMap<Place, (u32, u32)>;

impl TierIndex {
    /// Checks every invariant, in time linear in slots and transfers.
    ///
    /// Each slot is in one state and in the list of that state; maps lead to the entries and to all of them; counters
    /// equal what they count; each transfer has an end, and its ends are slots of its key in a state that it may hold;
    /// each hold on a slot is that of a transfer; a lost tier holds nothing that can be found.
    pub fn check(&self) -> Result<(), TierError> {
        let mut ends = Ends::new();
        for flight in self.flights.values() {
            self.check_transfer(&flight.transfer)?;
            if let Some(place) = flight.transfer.source {
                ends.entry(place).or_default().0 += 1;
            }
            if let Some(place) = flight.transfer.destination {
                ends.entry(place).or_default().1 += 1;
            }
        }
        for (id, tier) in self.ids().zip(&self.tiers) {
            check_lists(tier)?;
            check_cells(id, tier, &ends)?;
            check_counts(tier)?;
        }
        Ok(())
    }

    fn check_transfer(&self, transfer: &Transfer) -> Result<(), TierError> {
        let id = transfer.id;
        if id >= self.next_id || (transfer.source.is_none() && transfer.destination.is_none()) {
            return broken(format!("transfer {id} has no end, or an id not given out"));
        }
        let ends = [
            (transfer.source, Life::Resident),
            (transfer.destination, Life::Arriving),
        ];
        for (place, life) in ends {
            let Some(Place { tier, slot }) = place else {
                continue;
            };
            let tier = self.get(tier)?;
            if !tier.slots.contains(slot) || tier.cell(slot).key != transfer.key {
                return broken(format!("transfer {id} has an end that is no slot of its key"));
            }
            if ![life, Life::Leaving, Life::Lost].contains(&tier.cell(slot).life) {
                return broken(format!("an end of transfer {id} is {:?}", tier.cell(slot).life));
            }
        }
        Ok(())
    }
}

fn check_lists(tier: &Tier) -> Result<(), TierError> {
    if !tier.free.is_consistent(&tier.slots) || !tier.idle.is_consistent(&tier.slots) {
        return broken(format!(
            "links, ends and length of a list of {:?} disagree",
            tier.name
        ));
    }
    let mut listed = vec![0_u8; tier.slots.len()];
    for slot in tier.free.iter(&tier.slots) {
        listed[slot as usize] += 1;
    }
    for slot in tier.idle.iter(&tier.slots) {
        listed[slot as usize] += 2;
    }
    for (slot, cell) in tier.slots.iter() {
        let expected = match (cell.life, cell.is_idle()) {
            (Life::Free, _) => 1,
            (_, true) => 2,
            (_, false) => 0,
        };
        if listed[slot as usize] != expected {
            return broken(format!(
                "slot {slot} of {:?} is not in the list of its state",
                tier.name
            ));
        }
    }
    Ok(())
}

fn check_cells(id: TierId, tier: &Tier, ends: &Ends) -> Result<(), TierError> {
    for (slot, cell) in tier.slots.iter() {
        let place = Place { tier: id, slot };
        let (readers, writers) = ends.get(&place).copied().unwrap_or_default();
        let is_found = tier.find(cell.key) == Some(slot);
        let agrees = match cell.life {
            Life::Free => !is_found && readers + writers == 0 && cell.pins == 0,
            Life::Arriving => is_found && (readers, writers) == (0, 1) && cell.pins == 0,
            Life::Resident => is_found && writers == 0,
            Life::Leaving | Life::Lost => {
                !is_found && readers + writers > 0 && (readers == 0 || writers == 0) && cell.pins == 0
            }
        };
        if !agrees || cell.holds != readers + writers {
            return broken(format!(
                "slot {slot} of {:?} contradicts itself: {cell:?}",
                tier.name
            ));
        }
    }
    Ok(())
}

fn check_counts(tier: &Tier) -> Result<(), TierError> {
    let count = |is_one: &dyn Fn(Life, u16) -> bool| {
        let cells = tier.slots.iter();
        cells.filter(|(_, cell)| is_one(cell.life, cell.pins)).count()
    };
    let resident = count(&|life, _| life == Life::Resident);
    let arriving = count(&|life, _| life == Life::Arriving);
    let leaving = count(&|life, _| matches!(life, Life::Leaving | Life::Lost));
    let pinned = count(&|_, pins| pins > 0);
    let slots = tier.by_key.iter().collect::<std::collections::HashSet<Slot>>();
    let agrees = tier.by_key.len() == resident + arriving
        && slots.len() == tier.by_key.len()
        && (tier.arriving, tier.leaving, tier.pinned) == (arriving, leaving, pinned)
        && tier.capacity.is_none_or(|capacity| tier.slots.len() <= capacity)
        && (tier.by_key.is_empty() || !tier.is_lost);
    if !agrees {
        return broken(format!("the counters of {:?} disagree with its slots", tier.name));
    }
    Ok(())
}

fn broken<T>(message: String) -> Result<T, TierError> {
    Err(TierError::Invariant(message))
}
