//! Owns what the cache tells followers: which blocks can be found where, as events of a log.

use std::sync::Arc;

use kvcache_blocks::BlockId;
use kvcache_events::{Batch, Event, EventError, EventLog, Key, Name, Stored};
use kvcache_prefix::BlockName;
use kvcache_tiers::Slot;

use crate::{CacheError, KvCache, Sequence};

/// Where a block can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Device,
    Host,
}

/// Blocks that can no longer be found, gathered until something else happens.
#[derive(Debug)]
struct Removed {
    tier: Tier,
    group: u8,
    keys: Vec<Key>,
}

/// The log, and the group of each block, which its name does not tell.
#[derive(Debug)]
pub(crate) struct Events {
    log: EventLog,
    device: Name,
    host: Name,
    removed: Option<Removed>,
    /// By block; empty with one group.
    groups: Vec<u8>,
    /// By slot of the host tier; empty with one group.
    host_groups: Vec<u8>,
}

impl Events {
    pub(crate) fn new(num_groups: usize, num_blocks: usize, host_blocks: usize) -> Self {
        let tracked = |n| if num_groups > 1 { vec![0; n] } else { Vec::new() };
        Self {
            log: EventLog::disabled(),
            device: Arc::from("device"),
            host: Arc::from("host"),
            removed: None,
            groups: tracked(num_blocks),
            host_groups: tracked(host_blocks),
        }
    }

    fn name(&self, tier: Tier) -> Name {
        match tier {
            Tier::Device => Arc::clone(&self.device),
            Tier::Host => Arc::clone(&self.host),
        }
    }

    /// Notes the group of a block that is about to be published.
    pub(crate) fn set_group(&mut self, block: BlockId, group: usize) {
        if let Some(entry) = self.groups.get_mut(block as usize) {
            *entry = group as u8;
        }
    }

    fn group(&self, block: BlockId) -> u8 {
        self.groups.get(block as usize).copied().unwrap_or(0)
    }

    fn host_group(&self, slot: Slot) -> u8 {
        self.host_groups.get(slot as usize).copied().unwrap_or(0)
    }

    /// Full blocks `first..first + count` of a sequence can be found on the device.
    pub(crate) fn stored(
        &mut self,
        sequence: &Sequence,
        group: usize,
        first: usize,
        count: usize,
    ) -> Result<(), CacheError> {
        if count == 0 || !self.log.is_enabled() {
            return Ok(());
        }
        let size = sequence.layout().groups()[group].block_size;
        let (start, end) = (first * size, (first + count) * size);
        let keys = (first..first + count).filter_map(|block| sequence.hash_of((block + 1) * size));
        let stored = Stored {
            keys: keys.map(kvcache_prefix::BlockHash::to_bytes).collect(),
            parent: (start > 0)
                .then(|| sequence.hash_of(start))
                .flatten()
                .map(kvcache_prefix::BlockHash::to_bytes),
            token_ids: sequence.tokens[start..end].to_vec(),
            block_size: size as u32,
            group: group as u32,
            tier: self.name(Tier::Device),
            lora: sequence.lora.as_deref().map(Arc::from),
            has_extra_keys: sequence.has_extra_keys(end),
        };
        self.push(Event::Stored(stored))
    }

    /// A block of the device cannot be found any more.
    pub(crate) fn removed(&mut self, block: BlockId, name: BlockName) -> Result<(), CacheError> {
        self.remove(Tier::Device, self.group(block), name)
    }

    /// A slot of the host tier is claimed for a block, and what it held before is gone.
    pub(crate) fn host_claimed(
        &mut self,
        slot: Slot,
        block: BlockId,
        evicted: Option<BlockName>,
    ) -> Result<(), CacheError> {
        let before = self.host_group(slot);
        let group = self.group(block);
        if let Some(entry) = self.host_groups.get_mut(slot as usize) {
            *entry = group;
        }
        evicted.map_or(Ok(()), |name| self.remove(Tier::Host, before, name))
    }

    /// A block has arrived in a slot of the host tier.
    pub(crate) fn host_stored(&mut self, slot: Slot, name: BlockName) -> Result<(), CacheError> {
        let group = self.host_group(slot);
        let (from, to) = (self.name(Tier::Device), self.name(Tier::Host));
        let keys = vec![name.hash(group.into()).to_bytes()];
        self.push(Event::Moved {
            keys,
            group: group.into(),
            from,
            to,
            // The device gave it up when it was evicted, and may have computed it again since.
            is_copy: true,
        })
    }

    /// Nothing can be found any more.
    pub(crate) fn cleared(&mut self) -> Result<(), CacheError> {
        self.push(Event::Cleared { tier: None })
    }

    fn remove(&mut self, tier: Tier, group: u8, name: BlockName) -> Result<(), CacheError> {
        if !self.log.is_enabled() {
            return Ok(());
        }
        let key = name.hash(group.into()).to_bytes();
        match &mut self.removed {
            Some(removed) if (removed.tier, removed.group) == (tier, group) => removed.keys.push(key),
            _ => {
                self.flush()?;
                self.removed = Some(Removed {
                    tier,
                    group,
                    keys: vec![key],
                });
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CacheError> {
        let Some(removed) = self.removed.take() else {
            return Ok(());
        };
        let tier = self.name(removed.tier);
        self.log
            .push(Event::Removed {
                keys: removed.keys,
                group: removed.group.into(),
                tier,
            })
            .map_err(|error| broken(&error))
    }

    fn push(&mut self, event: Event) -> Result<(), CacheError> {
        if !self.log.is_enabled() {
            return Ok(());
        }
        self.flush()?;
        self.log.push(event).map_err(|error| broken(&error))
    }
}

fn broken(error: &EventError) -> CacheError {
    CacheError::Invariant(error.to_string())
}

impl KvCache {
    /// Keeps the latest events from now on, as many as name `capacity` blocks; see [`EventLog::new`].
    pub fn keep_events(&mut self, capacity: usize, epoch: u64) {
        self.events.log = EventLog::new(capacity, epoch);
    }

    /// The events from number `seq` on, the first `limit` of them. A follower that is told of a gap goes on from a
    /// [`snapshot`](Self::events_snapshot).
    pub fn events_since(&mut self, seq: u64, limit: usize) -> Result<Batch, EventError> {
        if let Some(Removed { tier, group, keys }) = self.events.removed.take() {
            let tier = self.events.name(tier);
            let group = group.into();
            self.events.log.push(Event::Removed { keys, group, tier })?;
        }
        self.events.log.page(seq, limit)
    }

    /// Events that rebuild from nothing what can be found now, each of one block, without parents and tokens, which are
    /// not kept. Linear in the blocks.
    pub fn events_snapshot(&mut self) -> Result<Batch, EventError> {
        // So that the events that led here come before the snapshot's number.
        self.events_since(self.events.log.next_seq(), 0)?;
        let mut events = Vec::new();
        let partial = |block: &BlockId| self.is_partial(*block);
        let mut blocks = self
            .index
            .blocks()
            .filter(|block| !partial(block))
            .collect::<Vec<_>>();
        blocks.sort_unstable();
        for block in blocks {
            if let Some(name) = self.index.name(block) {
                events.push(self.bare(name, self.events.group(block), Tier::Device));
            }
        }
        if let Some(host) = &self.host {
            for (slot, name) in host.contents() {
                events.push(self.bare(name, self.events.host_group(slot), Tier::Host));
            }
        }
        self.events.log.snapshot(events)
    }

    fn bare(&self, name: BlockName, group: u8, tier: Tier) -> Event {
        let spec = self.layout.groups()[usize::from(group)];
        Event::Stored(Stored {
            keys: vec![name.hash(group.into()).to_bytes()],
            parent: None,
            token_ids: Vec::new(),
            block_size: spec.block_size as u32,
            group: group.into(),
            tier: self.events.name(tier),
            lora: None,
            has_extra_keys: false,
        })
    }
}
