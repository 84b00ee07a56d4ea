//! Owns transfers: how each kind begins and how it ends.

use crate::slots::Life;
use crate::{Key, Place, TierError, TierId, TierIndex};

/// Name of a transfer; never used twice in an index.
pub type TransferId = u64;

/// A copy of one block that a connector makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Its name, for [`TierIndex::complete`] and [`TierIndex::fail`].
    pub id: TransferId,
    /// What is copied.
    pub key: Key,
    /// The slot to read; `None` where the contents come from outside the index.
    pub source: Option<Place>,
    /// The slot to write; `None` where the contents go outside the index.
    pub destination: Option<Place>,
}

/// What becomes of the source when a move has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It stays where it is.
    Keep,
    /// It is dropped, unless it was pinned meanwhile.
    Drop,
}

/// A transfer that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// What is to be copied.
    pub transfer: Transfer,
    /// The key that was evicted from the destination to make room; its contents are gone from that tier.
    pub evicted: Option<Key>,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Contents from outside are now resident in the destination.
    Stored,
    /// Contents went outside; the source is as before.
    Loaded,
    /// The destination is resident, and so is the source unless it was removed meanwhile.
    Copied,
    /// The destination is resident, the source was dropped.
    Moved,
    /// Nothing arrived: the connector said so, or an end was lost or removed meanwhile. Whatever was copied is void.
    Failed,
}

/// A transfer that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The transfer.
    pub transfer: Transfer,
    /// What came of it.
    pub outcome: Outcome,
}

/// A transfer in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) transfer: Transfer,
    pub(crate) source: Source,
}

impl TierIndex {
    /// Begins to copy a block from outside the index into a tier, such as one that a device's cache evicts. The entry
    /// is arriving until the transfer ends. The least recently used idle entry is evicted where no slot is free.
    pub fn begin_store(&mut self, key: Key, to: TierId) -> Result<Begun, TierError> {
        let (slot, evicted) = self.claim(key, to)?;
        let destination = Some(Place { tier: to, slot });
        Ok(self.launch(key, None, destination, Source::Keep, evicted))
    }

    /// Begins to copy a block out of the index, from `from` or from the fastest tier where it is resident. The slot
    /// can be read until the transfer ends, whatever happens to the entry, short of its loss.
    pub fn begin_load(&mut self, key: Key, from: Option<TierId>) -> Result<Transfer, TierError> {
        let source = self.readable(key, from)?;
        self.get_mut(source.tier)?.hold(source.slot);
        Ok(self.launch(key, Some(source), None, Source::Keep, None).transfer)
    }

    /// Begins to copy a block from one tier to another. Until the transfer ends the source is resident, cannot be
    /// evicted and can be read by others; the destination is arriving.
    pub fn begin_move(
        &mut self,
        key: Key,
        from: TierId,
        to: TierId,
        source: Source,
    ) -> Result<Begun, TierError> {
        let place = self.movable(key, from, to, source)?;
        let (slot, evicted) = self.claim(key, to)?;
        self.get_mut(from)?.hold(place.slot);
        let destination = Some(Place { tier: to, slot });
        Ok(self.launch(key, Some(place), destination, source, evicted))
    }

    /// [`begin_move`](Self::begin_move) to a slower tier, from the fastest one above it where the key is resident.
    pub fn demote(&mut self, key: Key, to: TierId, source: Source) -> Result<Begun, TierError> {
        let from = self.above(key, to)?;
        self.begin_move(key, from, to, source)
    }

    /// [`begin_move`](Self::begin_move) to a faster tier, from the fastest one below it where the key is resident; the
    /// source stays.
    pub fn promote(&mut self, key: Key, to: TierId) -> Result<Begun, TierError> {
        let from = self.below(key, to)?;
        self.begin_move(key, from, to, Source::Keep)
    }

    /// The source of a load.
    pub(crate) fn readable(&self, key: Key, from: Option<TierId>) -> Result<Place, TierError> {
        let missing = TierError::NotResident { key, tier: from };
        let place = match from {
            None => self.lookup(key).ok_or(missing)?,
            Some(tier) => {
                let slot = self.require(key, tier)?;
                Place { tier, slot }
            }
        };
        self.check_holds(key, place)?;
        Ok(place)
    }

    /// The source of a move.
    pub(crate) fn movable(
        &self,
        key: Key,
        from: TierId,
        to: TierId,
        source: Source,
    ) -> Result<Place, TierError> {
        if from == to {
            return Err(TierError::SameTier(to));
        }
        let slot = self.require(key, from)?;
        let place = Place { tier: from, slot };
        if source == Source::Drop && self.get(from)?.cell(slot).pins > 0 {
            return Err(TierError::Pinned { key, tier: from });
        }
        self.check_holds(key, place)?;
        Ok(place)
    }

    fn check_holds(&self, key: Key, Place { tier, slot }: Place) -> Result<(), TierError> {
        if self.get(tier)?.cell(slot).holds == u32::MAX {
            return Err(TierError::TooMany { key, tier });
        }
        Ok(())
    }

    /// The fastest tier above `to` where the key is resident.
    pub(crate) fn above(&self, key: Key, to: TierId) -> Result<TierId, TierError> {
        self.get(to)?;
        let place = self.first_resident(key, self.ids().take_while(|tier| *tier < to));
        place
            .map(|place| place.tier)
            .ok_or(TierError::NotResident { key, tier: None })
    }

    /// The fastest tier below `to` where the key is resident.
    pub(crate) fn below(&self, key: Key, to: TierId) -> Result<TierId, TierError> {
        self.get(to)?;
        let place = self.first_resident(key, self.ids().filter(|tier| *tier > to));
        place
            .map(|place| place.tier)
            .ok_or(TierError::NotResident { key, tier: None })
    }

    fn launch(
        &mut self,
        key: Key,
        from: Option<Place>,
        destination: Option<Place>,
        source: Source,
        evicted: Option<Key>,
    ) -> Begun {
        let transfer = Transfer {
            id: self.next_id,
            key,
            source: from,
            destination,
        };
        self.next_id += 1;
        self.flights.insert(transfer.id, Flight { transfer, source });
        Begun { transfer, evicted }
    }

    /// A transfer in flight.
    pub fn transfer(&self, id: TransferId) -> Option<Transfer> {
        self.flights.get(&id).map(|flight| flight.transfer)
    }

    /// Number of transfers in flight.
    pub fn num_in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Ends a transfer whose contents were copied. See [`Outcome`] for what that came to.
    pub fn complete(&mut self, id: TransferId) -> Result<Ended, TierError> {
        let flight = self.flights.remove(&id).ok_or(TierError::UnknownTransfer(id))?;
        let Transfer {
            source, destination, ..
        } = flight.transfer;
        let mut outcome = match (source, destination) {
            (None, _) => Outcome::Stored,
            (_, None) => Outcome::Loaded,
            _ => Outcome::Copied,
        };
        if let Some(place) = destination {
            let tier = self.get_mut(place.tier)?;
            if !tier.arrive(place.slot) {
                outcome = Outcome::Failed;
            }
            tier.unhold(place.slot);
        }
        if let Some(place) = source {
            let tier = self.get_mut(place.tier)?;
            let cell = tier.cell(place.slot);
            if cell.life == Life::Lost {
                outcome = Outcome::Failed;
            } else if outcome == Outcome::Copied && flight.source == Source::Drop {
                let (pins, life) = (cell.pins, cell.life);
                if life == Life::Resident && pins == 0 {
                    tier.forget(place.slot, Life::Leaving);
                }
                if pins == 0 {
                    outcome = Outcome::Moved;
                }
            }
            tier.unhold(place.slot);
        }
        Ok(Ended {
            transfer: flight.transfer,
            outcome,
        })
    }

    /// Ends a transfer that copied nothing: the destination's slot is free again, the source stays as it is.
    pub fn fail(&mut self, id: TransferId) -> Result<Ended, TierError> {
        let flight = self.flights.remove(&id).ok_or(TierError::UnknownTransfer(id))?;
        let Transfer {
            source, destination, ..
        } = flight.transfer;
        if let Some(place) = destination {
            let tier = self.get_mut(place.tier)?;
            if tier.cell(place.slot).life == Life::Arriving {
                tier.forget(place.slot, Life::Leaving);
            }
            tier.unhold(place.slot);
        }
        if let Some(place) = source {
            self.get_mut(place.tier)?.unhold(place.slot);
        }
        Ok(Ended {
            transfer: flight.transfer,
            outcome: Outcome::Failed,
        })
    }
}
