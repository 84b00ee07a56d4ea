//! Owns what happens when contents are lost: a bad block, a tier that went away, a cache that must be emptied.

use crate::slots::Life;
use crate::{Key, Place, TierError, TierId, TierIndex, Transfer, TransferId};

impl TierIndex {
    /// States that the contents of a key in a tier are bad, whether they are there or on their way.
    ///
    /// Returns the transfers in flight that read or write them, oldest first: they have failed, but their slots stay
    /// taken until each was ended.
    pub fn lose(&mut self, key: Key, tier: TierId) -> Result<Vec<TransferId>, TierError> {
        let found = self.get_mut(tier)?;
        let missing = TierError::NotResident {
            key,
            tier: Some(tier),
        };
        let slot = found.find(key).ok_or(missing)?;
        let is_held = found.cell(slot).holds > 0;
        found.forget(slot, Life::Lost);
        let place = Some(Place { tier, slot });
        Ok(if is_held {
            self.condemn(|transfer| transfer.source == place || transfer.destination == place)
        } else {
            Vec::new()
        })
    }

    /// States that a tier went away with all that it held, pins included. It takes nothing in until
    /// [`restore_tier`](Self::restore_tier).
    ///
    /// Returns the transfers in flight into and out of it, oldest first: they have failed, but the slots that they hold
    /// in other tiers stay taken until each was ended.
    pub fn lose_tier(&mut self, tier: TierId) -> Result<Vec<TransferId>, TierError> {
        let lost = self.get_mut(tier)?;
        lost.is_lost = true;
        lost.forget_all();
        let is_there = |place: Option<Place>| place.is_some_and(|place| place.tier == tier);
        Ok(self.condemn(|transfer| is_there(transfer.source) || is_there(transfer.destination)))
    }

    /// Opens a lost tier again, empty. False where it was not lost.
    pub fn restore_tier(&mut self, tier: TierId) -> Result<bool, TierError> {
        let tier = self.get_mut(tier)?;
        Ok(std::mem::replace(&mut tier.is_lost, false))
    }

    /// Voids the contents of every tier, pins included, as after a change of weights.
    ///
    /// Returns the transfers in flight, oldest first: they have failed, but their slots stay taken until each was ended.
    pub fn clear(&mut self) -> Vec<TransferId> {
        for tier in &mut self.tiers {
            tier.forget_all();
        }
        self.condemn(|_| true)
    }

    /// Drops what the chosen transfers were to bring, so that it can be fetched anew at once.
    fn condemn(&mut self, is_chosen: impl Fn(&Transfer) -> bool) -> Vec<TransferId> {
        let mut ids = Vec::new();
        for flight in self.flights.values() {
            if !is_chosen(&flight.transfer) {
                continue;
            }
            ids.push(flight.transfer.id);
            if let Some(place) = flight.transfer.destination {
                let tier = &mut self.tiers[place.tier.0 as usize];
                if tier.cell(place.slot).life == Life::Arriving {
                    tier.forget(place.slot, Life::Lost);
                }
            }
        }
        ids.sort_unstable();
        ids
    }
}
