//! A plain model of the index: maps and vectors, no slots lists, no shared code. It says what each call must answer.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_tiers::{
    Batch, Begun, Ended, Inserted, Key, Outcome, Place, Slot, Source, TierError, TierId, TierIndex, Transfer,
    TransferId,
};

#[derive(Debug, Clone, Default)]
pub(crate) struct ModelEntry {
    pub(crate) slot: Slot,
    pub(crate) writer: Option<TransferId>,
    pub(crate) readers: BTreeSet<TransferId>,
    pub(crate) pins: u16,
}

impl ModelEntry {
    pub(crate) fn is_idle(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty() && self.pins == 0
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ModelTier {
    pub(crate) capacity: Option<usize>,
    pub(crate) is_lost: bool,
    pub(crate) entries: BTreeMap<Key, ModelEntry>,
    /// Slots of dropped entries, with the transfers that hold them.
    pub(crate) leaving: BTreeMap<Slot, BTreeSet<TransferId>>,
    /// Idle keys, next victim first.
    pub(crate) order: Vec<Key>,
    pub(crate) evictions: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelFlight {
    pub(crate) transfer: Transfer,
    source: Source,
    is_doomed: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) tiers: Vec<ModelTier>,
    pub(crate) flights: BTreeMap<TransferId, ModelFlight>,
    next_id: TransferId,
}

impl ModelTier {
    fn used(&self) -> usize {
        self.entries.len() + self.leaving.len()
    }

    fn is_full(&self) -> bool {
        self.capacity == Some(self.used())
    }

    fn available(&self, spared: &[Key]) -> usize {
        let free = self
            .capacity
            .map_or(usize::MAX / 2, |capacity| capacity - self.used());
        free + self.order.iter().filter(|key| !spared.contains(key)).count()
    }

    fn owns(&self, slot: Slot) -> bool {
        self.leaving.contains_key(&slot) || self.entries.values().any(|entry| entry.slot == slot)
    }

    /// Drops an entry and returns the transfers that hold its slot.
    fn drop_entry(&mut self, key: Key) -> BTreeSet<TransferId> {
        let entry = self.entries.remove(&key).expect("the model dropped what it has");
        self.order.retain(|other| *other != key);
        let mut holders = entry.readers;
        holders.extend(entry.writer);
        if !holders.is_empty() {
            self.leaving.insert(entry.slot, holders.clone());
        }
        holders
    }

    fn release(&mut self, slot: Slot, id: TransferId) {
        if let Some(holders) = self.leaving.get_mut(&slot) {
            holders.remove(&id);
            if holders.is_empty() {
                self.leaving.remove(&slot);
            }
            return;
        }
        let (key, entry) = self
            .entries
            .iter_mut()
            .find(|(_, entry)| entry.slot == slot)
            .expect("a transfer ends in a slot that is owned");
        entry.readers.remove(&id);
        if entry.is_idle() {
            self.order.push(*key);
        }
    }
}

fn distinct(keys: &[Key]) -> Result<(), TierError> {
    let mut seen = BTreeSet::new();
    match keys.iter().find(|key| !seen.insert(**key)) {
        Some(twice) => Err(TierError::TwiceKey(*twice)),
        None => Ok(()),
    }
}

impl Model {
    pub(crate) fn new(capacities: &[Option<usize>]) -> Self {
        let tiers = capacities.iter().map(|capacity| ModelTier {
            capacity: *capacity,
            ..ModelTier::default()
        });
        Self {
            tiers: tiers.collect(),
            flights: BTreeMap::new(),
            next_id: 0,
        }
    }

    fn at(&mut self, tier: TierId) -> &mut ModelTier {
        &mut self.tiers[tier.0 as usize]
    }

    pub(crate) fn resident(&self, key: Key, tier: TierId) -> Option<&ModelEntry> {
        let entry = self.tiers[tier.0 as usize].entries.get(&key);
        entry.filter(|entry| entry.writer.is_none())
    }

    fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..self.tiers.len() as u8).map(TierId)
    }

    pub(crate) fn lookup(&self, key: Key) -> Option<Place> {
        self.ids().find_map(|tier| {
            let slot = self.resident(key, tier)?.slot;
            Some(Place { tier, slot })
        })
    }

    /// Claims room; `slot` is what the index chose, and only has to be nobody else's.
    fn claim(&mut self, key: Key, tier: TierId, slot: Slot) -> Option<Key> {
        let at = self.at(tier);
        let evicted = at.is_full().then(|| at.order[0]);
        if let Some(victim) = evicted {
            at.drop_entry(victim);
            at.evictions += 1;
        }
        assert!(!at.owns(slot), "slot {slot} was given out twice");
        assert!(at.capacity.is_none_or(|capacity| (slot as usize) < capacity));
        let entry = ModelEntry {
            slot,
            ..ModelEntry::default()
        };
        at.entries.insert(key, entry);
        evicted
    }

    fn refuse_entry(&self, key: Key, to: TierId) -> Result<(), TierError> {
        let tier = &self.tiers[to.0 as usize];
        if tier.is_lost {
            return Err(TierError::TierLost(to));
        }
        if tier.entries.contains_key(&key) {
            return Err(TierError::Present { key, tier: to });
        }
        if tier.available(&[]) == 0 {
            return Err(TierError::NoRoom {
                tier: to,
                needed: 1,
                available: 0,
            });
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, key: Key, tier: TierId, got: &Result<Inserted, TierError>) {
        let expected = self.refuse_entry(key, tier);
        let Ok(Inserted { slot, evicted }) = got else {
            assert_eq!(got.clone().map(drop), expected);
            return;
        };
        assert_eq!(expected, Ok(()));
        assert_eq!(*evicted, self.claim(key, tier, *slot));
        self.at(tier).order.push(key);
    }

    fn source(&self, key: Key, from: Option<TierId>) -> Result<Place, TierError> {
        let missing = Err(TierError::NotResident { key, tier: from });
        match from {
            None => self.lookup(key).map_or(missing, Ok),
            Some(tier) => self.resident(key, tier).map_or(missing, |entry| {
                Ok(Place {
                    tier,
                    slot: entry.slot,
                })
            }),
        }
    }

    fn refuse_move(&self, key: Key, from: TierId, to: TierId, source: Source) -> Result<(), TierError> {
        if from == to {
            return Err(TierError::SameTier(to));
        }
        self.source(key, Some(from))?;
        let is_pinned = self.resident(key, from).is_some_and(|entry| entry.pins > 0);
        if source == Source::Drop && is_pinned {
            return Err(TierError::Pinned { key, tier: from });
        }
        Ok(())
    }

    /// Enters a transfer that the index began and checks its ends.
    fn launch(&mut self, got: Begun, from: Option<TierId>, to: Option<TierId>, source: Source) {
        let Transfer { id, key, .. } = got.transfer;
        assert_eq!(id, self.next_id);
        self.next_id += 1;
        assert_eq!(got.transfer.destination.map(|place| place.tier), to);
        assert_eq!(got.transfer.source.map(|place| place.tier), from);
        let mut evicted = None;
        if let Some(Place { tier, slot }) = got.transfer.destination {
            evicted = self.claim(key, tier, slot);
            let entry = self.at(tier).entries.get_mut(&key);
            entry.expect("claimed").writer = Some(id);
        }
        assert_eq!(got.evicted, evicted);
        if let Some(Place { tier, slot }) = got.transfer.source {
            let at = self.at(tier);
            let entry = at.entries.get_mut(&key).expect("a source is resident");
            assert_eq!(entry.slot, slot);
            entry.readers.insert(id);
            at.order.retain(|other| *other != key);
        }
        let flight = ModelFlight {
            transfer: got.transfer,
            source,
            is_doomed: false,
        };
        self.flights.insert(id, flight);
    }

    pub(crate) fn store(&mut self, key: Key, to: TierId, got: &Result<Begun, TierError>) {
        let expected = self.refuse_entry(key, to);
        assert_eq!(got.clone().map(drop), expected);
        if let Ok(begun) = got {
            self.launch(*begun, None, Some(to), Source::Keep);
        }
    }

    pub(crate) fn load(&mut self, key: Key, from: Option<TierId>, got: &Result<Transfer, TierError>) {
        let expected = self.source(key, from);
        assert_eq!(got.clone().map(drop), expected.clone().map(drop));
        if let (Ok(transfer), Ok(place)) = (got, expected) {
            let begun = Begun {
                transfer: *transfer,
                evicted: None,
            };
            self.launch(begun, Some(place.tier), None, Source::Keep);
        }
    }

    pub(crate) fn shift(
        &mut self,
        key: Key,
        from: TierId,
        to: TierId,
        source: Source,
        got: &Result<Begun, TierError>,
    ) {
        let expected = self
            .refuse_move(key, from, to, source)
            .and_then(|()| self.refuse_entry(key, to));
        assert_eq!(got.clone().map(drop), expected);
        if let Ok(begun) = got {
            self.launch(*begun, Some(from), Some(to), source);
        }
    }

    /// Where a demotion (or a promotion) to a tier reads.
    pub(crate) fn nearest(&self, key: Key, to: TierId, is_demotion: bool) -> Option<TierId> {
        self.ids()
            .filter(|tier| if is_demotion { *tier < to } else { *tier > to })
            .find(|tier| self.resident(key, *tier).is_some())
    }

    pub(crate) fn step(
        &mut self,
        key: Key,
        to: TierId,
        source: Source,
        is_demotion: bool,
        got: &Result<Begun, TierError>,
    ) {
        match self.nearest(key, to, is_demotion) {
            Some(from) => self.shift(key, from, to, source, got),
            None => assert_eq!(*got, Err(TierError::NotResident { key, tier: None })),
        }
    }

    /// What a batch into a tier must answer: an error, or the keys to transfer.
    fn plan(
        &self,
        keys: &[Key],
        to: TierId,
        refuse: impl Fn(Key) -> Result<(), TierError>,
    ) -> Result<Vec<Key>, TierError> {
        let tier = &self.tiers[to.0 as usize];
        let (present, absent) = keys
            .iter()
            .partition::<Vec<Key>, _>(|key| tier.entries.contains_key(*key));
        absent.iter().try_for_each(|key| refuse(*key))?;
        distinct(keys)?;
        if tier.is_lost {
            return Err(TierError::TierLost(to));
        }
        let available = tier.available(&present);
        if absent.len() > available {
            return Err(TierError::NoRoom {
                tier: to,
                needed: absent.len(),
                available,
            });
        }
        Ok(absent)
    }

    pub(crate) fn batch(
        &mut self,
        keys: &[Key],
        from: impl Fn(&Self, Key) -> Option<TierId>,
        to: TierId,
        source: Source,
        is_move: bool,
        got: &Result<Batch, TierError>,
    ) {
        let expected = self.plan(keys, to, |key| match from(self, key) {
            _ if !is_move => Ok(()),
            Some(from) => self.refuse_move(key, from, to, source),
            None => Err(TierError::NotResident { key, tier: None }),
        });
        let begun = got
            .as_ref()
            .map(|batch| batch.transfers.iter().map(|transfer| transfer.key).collect());
        assert_eq!(begun.map_err(Clone::clone), expected);
        let Ok(Batch { transfers, evicted }) = got else {
            return;
        };
        let present = keys
            .iter()
            .copied()
            .filter(|key| !expected.as_ref().is_ok_and(|absent| absent.contains(key)));
        self.touch_in(to, &present.collect::<Vec<_>>());
        let mut evicted = evicted.iter().copied();
        for transfer in transfers {
            let is_full = self.at(to).is_full();
            let victim = if is_full { evicted.next() } else { None };
            let from = if is_move { from(self, transfer.key) } else { None };
            let begun = Begun {
                transfer: *transfer,
                evicted: victim,
            };
            self.launch(begun, from, Some(to), source);
        }
        assert_eq!(evicted.next(), None);
    }

    pub(crate) fn load_batch(
        &mut self,
        keys: &[Key],
        from: Option<TierId>,
        got: &Result<Vec<Transfer>, TierError>,
    ) {
        let expected = keys.iter().try_for_each(|key| self.source(*key, from).map(drop));
        assert_eq!(got.clone().map(drop), expected);
        for (key, transfer) in keys.iter().zip(got.iter().flatten()) {
            self.load(*key, from, &Ok(*transfer));
        }
    }

    fn touch_in(&mut self, tier: TierId, keys: &[Key]) {
        let at = self.at(tier);
        for key in keys.iter().rev() {
            if at.order.contains(key) {
                at.order.retain(|other| other != key);
                at.order.push(*key);
            }
        }
    }

    pub(crate) fn touch(&mut self, keys: &[Key]) {
        for tier in self.ids() {
            self.touch_in(tier, keys);
        }
    }

    pub(crate) fn pin(&mut self, key: Key, tier: TierId, got: &Result<(), TierError>) {
        assert_eq!(got.clone(), self.source(key, Some(tier)).map(drop));
        if got.is_ok() {
            let at = self.at(tier);
            at.entries.get_mut(&key).expect("resident").pins += 1;
            at.order.retain(|other| *other != key);
        }
    }

    fn refuse_unpin(&self, key: Key, tier: TierId) -> Result<(), TierError> {
        self.source(key, Some(tier))?;
        let is_pinned = self.resident(key, tier).is_some_and(|entry| entry.pins > 0);
        let refusal = TierError::NotPinned { key, tier };
        if is_pinned { Ok(()) } else { Err(refusal) }
    }

    pub(crate) fn unpin(&mut self, key: Key, tier: TierId, got: &Result<(), TierError>) {
        assert_eq!(*got, self.refuse_unpin(key, tier));
        if got.is_ok() {
            let at = self.at(tier);
            let entry = at.entries.get_mut(&key).expect("resident");
            entry.pins -= 1;
            if entry.is_idle() {
                at.order.push(key);
            }
        }
    }

    pub(crate) fn pin_batch(&mut self, keys: &[Key], tier: TierId, got: &Result<(), TierError>) {
        let refusal = keys
            .iter()
            .try_for_each(|key| self.source(*key, Some(tier)).map(drop));
        assert_eq!(*got, distinct(keys).and(refusal));
        for key in keys.iter().filter(|_| got.is_ok()) {
            self.pin(*key, tier, got);
        }
    }

    pub(crate) fn unpin_batch(&mut self, keys: &[Key], tier: TierId, got: &Result<(), TierError>) {
        let refusal = keys.iter().try_for_each(|key| self.refuse_unpin(*key, tier));
        assert_eq!(*got, distinct(keys).and(refusal));
        for key in keys.iter().rev().filter(|_| got.is_ok()) {
            self.unpin(*key, tier, got);
        }
    }

    pub(crate) fn end(&mut self, id: TransferId, is_complete: bool, got: &Result<Ended, TierError>) {
        let Some(flight) = self.flights.remove(&id) else {
            assert_eq!(*got, Err(TierError::UnknownTransfer(id)));
            return;
        };
        let Transfer {
            key,
            source,
            destination,
            ..
        } = flight.transfer;
        let arrives = is_complete && !flight.is_doomed;
        if let Some(Place { tier, slot }) = destination {
            let at = self.at(tier);
            let is_writer = at.entries.get(&key).is_some_and(|entry| entry.writer == Some(id));
            assert_eq!(is_writer, !flight.is_doomed);
            if is_writer && arrives {
                at.entries.get_mut(&key).expect("writer").writer = None;
            } else if is_writer {
                at.drop_entry(key);
            }
            at.release(slot, id);
        }
        let mut is_dropped = false;
        if let Some(Place { tier, slot }) = source {
            let at = self.at(tier);
            let entry = at.entries.get(&key).filter(|entry| entry.slot == slot);
            let is_pinned = entry.is_some_and(|entry| entry.pins > 0);
            is_dropped = flight.source == Source::Drop && !is_pinned;
            if arrives && is_dropped && entry.is_some() {
                at.drop_entry(key);
            }
            at.release(slot, id);
        }
        let outcome = match (arrives, source, destination) {
            (false, _, _) => Outcome::Failed,
            (true, None, _) => Outcome::Stored,
            (true, _, None) => Outcome::Loaded,
            (true, _, _) if is_dropped => Outcome::Moved,
            _ => Outcome::Copied,
        };
        let transfer = flight.transfer;
        assert_eq!(*got, Ok(Ended { transfer, outcome }));
    }

    /// Drops a key from a tier; transfers that would bring it there fail.
    pub(crate) fn drop_key(&mut self, key: Key, tier: TierId) -> bool {
        let at = self.at(tier);
        let Some(entry) = at.entries.get(&key) else {
            return false;
        };
        let writer = entry.writer;
        at.drop_entry(key);
        if let Some(flight) = writer.and_then(|writer| self.flights.get_mut(&writer)) {
            flight.is_doomed = true;
        }
        true
    }

    fn doom(&mut self, id: TransferId) {
        let flight = self.flights.get_mut(&id).expect("in flight");
        flight.is_doomed = true;
        let Transfer { key, destination, .. } = flight.transfer;
        if let Some(Place { tier, .. }) = destination {
            let at = self.at(tier);
            if at.entries.get(&key).is_some_and(|entry| entry.writer == Some(id)) {
                at.drop_entry(key);
            }
        }
    }

    pub(crate) fn lose(&mut self, key: Key, tier: TierId, got: &Result<Vec<TransferId>, TierError>) {
        let missing = TierError::NotResident {
            key,
            tier: Some(tier),
        };
        if !self.at(tier).entries.contains_key(&key) {
            assert_eq!(*got, Err(missing));
            return;
        }
        let holders = self.at(tier).drop_entry(key);
        assert_eq!(*got, Ok(holders.iter().copied().collect()));
        for id in holders {
            self.doom(id);
        }
    }

    fn empty(&mut self, tier: TierId) -> BTreeSet<TransferId> {
        let at = self.at(tier);
        let keys = at.entries.keys().copied().collect::<Vec<_>>();
        for key in keys {
            at.drop_entry(key);
        }
        at.leaving.values().flatten().copied().collect()
    }

    pub(crate) fn lose_tier(&mut self, tier: TierId, got: &Result<Vec<TransferId>, TierError>) {
        self.at(tier).is_lost = true;
        let ids = self.empty(tier);
        assert_eq!(*got, Ok(ids.iter().copied().collect()));
        for id in ids {
            self.doom(id);
        }
    }

    pub(crate) fn restore_tier(&mut self, tier: TierId) -> bool {
        std::mem::replace(&mut self.at(tier).is_lost, false)
    }

    pub(crate) fn clear(&mut self, got: &[TransferId]) {
        for tier in self.ids() {
            self.empty(tier);
        }
        let ids = self.flights.keys().copied().collect::<Vec<_>>();
        assert_eq!(*got, ids);
        for id in ids {
            self.doom(id);
        }
    }

    /// Compares everything that can be seen.
    pub(crate) fn compare(&self, index: &TierIndex, keys: &[Key]) {
        index.check().expect("every invariant holds");
        assert_eq!(index.num_in_flight(), self.flights.len());
        for (id, flight) in &self.flights {
            assert_eq!(index.transfer(*id), Some(flight.transfer));
        }
        for key in keys {
            assert_eq!(index.lookup(*key), self.lookup(*key));
        }
        let prefix = keys.iter().map_while(|key| self.lookup(*key));
        assert_eq!(index.locate(keys), prefix.collect::<Vec<_>>());
        for (tier, (at, stats)) in self.ids().zip(self.tiers.iter().zip(index.stats())) {
            assert_eq!(index.victims(tier, usize::MAX).expect("a tier"), at.order);
            let arriving = at.entries.values().filter(|entry| entry.writer.is_some()).count();
            let pinned = at.entries.values().filter(|entry| entry.pins > 0).count();
            assert_eq!(stats.resident, at.entries.len() - arriving);
            assert_eq!(stats.arriving, arriving);
            assert_eq!((stats.leaving, stats.pinned), (at.leaving.len(), pinned));
            assert_eq!((stats.idle, stats.evictions), (at.order.len(), at.evictions));
            let resident = at.entries.iter().filter(|(_, entry)| entry.writer.is_none());
            let mut resident = resident
                .map(|(key, entry)| (*key, entry.slot))
                .collect::<Vec<_>>();
            resident.sort_by_key(|(_, slot)| *slot);
            assert_eq!(index.contents(tier), Ok(resident));
            assert_eq!((stats.is_lost, stats.capacity), (at.is_lost, at.capacity));
            if let Some(capacity) = at.capacity {
                assert_eq!(stats.free, capacity - at.used());
            }
            for key in keys {
                let entry = index.entry(*key, tier).expect("a tier");
                let seen = entry.map(|entry| (entry.place.slot, entry.readers as usize, entry.pins));
                let known = at.entries.get(key);
                let known = known.map(|entry| (entry.slot, entry.readers.len(), entry.pins));
                assert_eq!(seen, known);
            }
        }
    }
}
