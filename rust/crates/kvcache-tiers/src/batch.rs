//! Owns the calls on many keys or transfers at once, each all or nothing.

use std::collections::HashSet;
use std::hash::Hash;

use crate::{Begun, Ended, Key, Source, TierError, TierId, TierIndex, Transfer, TransferId};

/// What a call on many keys began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// One transfer for each key that is not in the destination yet, in the order of the keys.
    pub transfers: Vec<Transfer>,
    /// The keys that were evicted from the destination.
    pub evicted: Vec<Key>,
}

impl TierIndex {
    /// [`begin_store`](Self::begin_store) for many keys, all or none.
    ///
    /// Keys that the tier has, or that are on their way, need no transfer: they are only touched, and no key of the
    /// batch is evicted for another.
    pub fn begin_store_many(&mut self, keys: &[Key], to: TierId) -> Result<Batch, TierError> {
        let absent = self.make_way(keys, to)?;
        self.begin_each(&absent, |index, key| index.begin_store(key, to))
    }

    /// [`begin_load`](Self::begin_load) for many keys, all or none.
    pub fn begin_load_many(
        &mut self,
        keys: &[Key],
        from: Option<TierId>,
    ) -> Result<Vec<Transfer>, TierError> {
        for key in keys {
            self.readable(*key, from)?;
        }
        keys.iter().map(|key| self.begin_load(*key, from)).collect()
    }

    /// [`begin_move`](Self::begin_move) for many keys, all or none; keys that the destination has are passed over as in
    /// [`begin_store_many`](Self::begin_store_many), and their sources stay.
    pub fn begin_move_many(
        &mut self,
        keys: &[Key],
        from: TierId,
        to: TierId,
        source: Source,
    ) -> Result<Batch, TierError> {
        self.get(from)?;
        if from == to {
            return Err(TierError::SameTier(to));
        }
        self.move_many(keys, to, source, |_, _| Ok(from))
    }

    /// [`demote`](Self::demote) for many keys, all or none, as in [`begin_move_many`](Self::begin_move_many).
    pub fn demote_many(&mut self, keys: &[Key], to: TierId, source: Source) -> Result<Batch, TierError> {
        self.move_many(keys, to, source, |index, key| index.above(key, to))
    }

    /// [`promote`](Self::promote) for many keys, all or none, as in [`begin_move_many`](Self::begin_move_many).
    pub fn promote_many(&mut self, keys: &[Key], to: TierId) -> Result<Batch, TierError> {
        self.move_many(keys, to, Source::Keep, |index, key| index.below(key, to))
    }

    fn move_many(
        &mut self,
        keys: &[Key],
        to: TierId,
        source: Source,
        from: impl Fn(&Self, Key) -> Result<TierId, TierError>,
    ) -> Result<Batch, TierError> {
        for key in keys {
            if self.get(to)?.find(*key).is_none() {
                self.movable(*key, from(self, *key)?, to, source)?;
            }
        }
        let absent = self.make_way(keys, to)?;
        self.begin_each(&absent, |index, key| {
            let from = from(index, key)?;
            index.begin_move(key, from, to, source)
        })
    }

    /// The keys that the tier does not have. Where there is room for them the others are touched, so that they are the
    /// last to be evicted; else nothing is changed.
    fn make_way(&mut self, keys: &[Key], to: TierId) -> Result<Vec<Key>, TierError> {
        require_distinct(keys, TierError::TwiceKey)?;
        let tier = self.get_open(to)?;
        let (present, absent) = keys
            .iter()
            .partition::<Vec<Key>, _>(|key| tier.find(**key).is_some());
        let is_idle = |key: &&Key| tier.find(**key).is_some_and(|slot| tier.cell(slot).is_idle());
        let available = tier.available() - present.iter().filter(is_idle).count();
        if absent.len() > available {
            return Err(TierError::NoRoom {
                tier: to,
                needed: absent.len(),
                available,
            });
        }
        for slot in present
            .iter()
            .rev()
            .filter_map(|key| tier.resident(*key))
            .collect::<Vec<_>>()
        {
            tier.touch(slot);
        }
        Ok(absent)
    }

    fn begin_each(
        &mut self,
        keys: &[Key],
        mut begin: impl FnMut(&mut Self, Key) -> Result<Begun, TierError>,
    ) -> Result<Batch, TierError> {
        let mut batch = Batch::default();
        for key in keys {
            let Begun { transfer, evicted } = begin(self, *key)?;
            batch.transfers.push(transfer);
            batch.evicted.extend(evicted);
        }
        Ok(batch)
    }

    /// [`complete`](Self::complete) for many transfers, all or none, answers in their order. They end last first, so
    /// that the first of a chain is the most recently used.
    pub fn complete_many(&mut self, ids: &[TransferId]) -> Result<Vec<Ended>, TierError> {
        self.end_many(ids, Self::complete)
    }

    /// [`fail`](Self::fail) for many transfers, all or none, as in [`complete_many`](Self::complete_many).
    pub fn fail_many(&mut self, ids: &[TransferId]) -> Result<Vec<Ended>, TierError> {
        self.end_many(ids, Self::fail)
    }

    /// [`pin`](Self::pin) for many keys, all or none.
    pub fn pin_many(&mut self, keys: &[Key], tier: TierId) -> Result<(), TierError> {
        require_distinct(keys, TierError::TwiceKey)?;
        for key in keys {
            let slot = self.require(*key, tier)?;
            if self.get(tier)?.cell(slot).pins == u16::MAX {
                return Err(TierError::TooMany { key: *key, tier });
            }
        }
        keys.iter().try_for_each(|key| self.pin(*key, tier))
    }

    /// [`unpin`](Self::unpin) for many keys, all or none; the first of a chain is the most recently used.
    pub fn unpin_many(&mut self, keys: &[Key], tier: TierId) -> Result<(), TierError> {
        require_distinct(keys, TierError::TwiceKey)?;
        for key in keys {
            let slot = self.require(*key, tier)?;
            if self.get(tier)?.cell(slot).pins == 0 {
                return Err(TierError::NotPinned { key: *key, tier });
            }
        }
        keys.iter().rev().try_for_each(|key| self.unpin(*key, tier))
    }

    fn end_many(
        &mut self,
        ids: &[TransferId],
        end: impl Fn(&mut Self, TransferId) -> Result<Ended, TierError>,
    ) -> Result<Vec<Ended>, TierError> {
        if let Some(unknown) = ids.iter().find(|id| !self.flights.contains_key(id)) {
            return Err(TierError::UnknownTransfer(*unknown));
        }
        require_distinct(ids, TierError::TwiceTransfer)?;
        let mut ended = ids
            .iter()
            .rev()
            .map(|id| end(self, *id))
            .collect::<Result<Vec<_>, _>>()?;
        ended.reverse();
        Ok(ended)
    }
}

fn require_distinct<T: Copy + Eq + Hash>(
    values: &[T],
    refusal: impl Fn(T) -> TierError,
) -> Result<(), TierError> {
    let mut seen = HashSet::with_capacity(values.len());
    match values.iter().find(|value| !seen.insert(**value)) {
        Some(twice) => Err(refusal(*twice)),
        None => Ok(()),
    }
}
