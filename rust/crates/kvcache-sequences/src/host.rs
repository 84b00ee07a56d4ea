//! Owns the host tier: evicted blocks go there, prefix hits bring them back. Only the index is here; the worker copies.

use std::collections::HashSet;

use kvcache_blocks::BlockId;
use kvcache_prefix::BlockName;
use kvcache_tiers::{Outcome, Slot, TierConfig, TierError, TierId, TierIndex, TransferId};

use crate::transfers::{BatchId, HostTransfer, Transfers};
use crate::{CacheError, KvCache};

/// Contents that stay on the host until they are loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldOnHost {
    pub(crate) id: TransferId,
    slot: Slot,
}

/// Which blocks the host holds. The index has one tier below the device, whose blocks the pool manages.
#[derive(Debug)]
pub(crate) struct HostTier {
    index: TierIndex,
    tier: TierId,
    num_blocks: usize,
}

impl HostTier {
    /// Makes an empty tier; none for 0 blocks.
    pub(crate) fn new(num_blocks: usize) -> Result<Option<Self>, CacheError> {
        if num_blocks == 0 {
            return Ok(None);
        }
        let config = TierConfig {
            name: "host".into(),
            capacity: Some(num_blocks),
        };
        let bad = |error: TierError| CacheError::invalid("host_blocks", num_blocks, error.to_string());
        let index = TierIndex::new([config]).map_err(bad)?;
        let tier = index.tier("host")?;
        Ok(Some(Self {
            index,
            tier,
            num_blocks,
        }))
    }

    /// Whether the contents are there, not only on their way.
    pub(crate) fn holds(&self, name: BlockName) -> bool {
        self.index.lookup(name.to_u128()).is_some()
    }

    /// Blocks of the tier, and those with contents or awaiting them.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let used = self
            .index
            .stats()
            .first()
            .map_or(0, |stats| stats.resident + stats.arriving);
        (self.num_blocks, used)
    }

    /// The slots whose contents are there, and what those are called.
    pub(crate) fn contents(&self) -> Vec<(Slot, BlockName)> {
        let mut resident = self.index.contents(self.tier).unwrap_or_default();
        resident.sort_unstable_by_key(|(_, slot)| *slot);
        let named = resident
            .into_iter()
            .map(|(key, slot)| (slot, BlockName::from_u128(key)));
        named.collect()
    }

    pub(crate) fn clear(&mut self) {
        self.index.clear();
    }

    pub(crate) fn num_in_flight(&self) -> usize {
        self.index.num_in_flight()
    }

    pub(crate) fn check(&self) -> Result<(), CacheError> {
        Ok(self.index.check()?)
    }
}

impl KvCache {
    /// Sends the contents of an evicted block to the host, unless they are there or it has no room.
    pub(crate) fn store_evicted(&mut self, name: BlockName, block: BlockId) -> Result<(), CacheError> {
        let Some(host) = &mut self.host else {
            return Ok(());
        };
        let key = name.to_u128();
        if host.index.lookup(key).is_some() {
            host.index.touch(&[key]);
            return Ok(());
        }
        let begun = match host.index.begin_store(key, host.tier) {
            Ok(begun) => begun,
            // On its way already, or every slot is read or written.
            Err(TierError::Present { .. } | TierError::NoRoom { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let place = begun.transfer.destination.ok_or_else(lost)?;
        self.events
            .host_claimed(place.slot, block, begun.evicted.map(BlockName::from_u128))?;
        self.transfers.store(begun.transfer.id, block, place.slot);
        Ok(())
    }

    /// Keeps contents that the host holds there until they are loaded: making room for them must not push them out.
    pub(crate) fn hold_on_host(&mut self, name: BlockName) -> Result<HeldOnHost, CacheError> {
        let host = self.host.as_mut().ok_or_else(lost)?;
        let transfer = host.index.begin_load(name.to_u128(), Some(host.tier))?;
        let slot = transfer.source.ok_or_else(lost)?.slot;
        Ok(HeldOnHost {
            id: transfer.id,
            slot,
        })
    }

    /// Lets go of contents that are not loaded after all.
    pub(crate) fn let_go_on_host(&mut self, held: &[HeldOnHost]) -> Result<(), CacheError> {
        let Some(host) = &mut self.host else {
            return Ok(());
        };
        held.iter()
            .try_for_each(|held| Ok(host.index.fail(held.id).map(drop)?))
    }

    /// Orders contents of the host into a block of the device.
    pub(crate) fn load(&mut self, held: HeldOnHost, block: BlockId) {
        self.transfers.load(held.id, held.slot, block);
    }

    /// Hands over the transfers due before the next step; carry them out one after the other.
    pub fn take_transfers(&mut self) -> Transfers {
        self.transfers.take()
    }

    /// Tells how a batch of transfers ended. What was stored can be found only then.
    ///
    /// After a failure the contents on the host are forgotten. Returns the open sequences that waited for blocks which
    /// were not loaded, forks included, in the order of their ids: they must be released or shrunk to nothing without
    /// a commit.
    pub fn finish_transfers(&mut self, batch: BatchId, succeeded: bool) -> Result<Vec<i64>, CacheError> {
        let unknown = || CacheError::invalid("batch", batch, "no batch of this number is in flight");
        let ended = self.transfers.end(batch).ok_or_else(unknown)?;
        let host = self.host.as_mut().ok_or_else(lost)?;
        let mut loads = HashSet::new();
        for HostTransfer { id, is_load } in ended {
            if is_load {
                loads.insert(id);
            }
            if !succeeded {
                host.index.fail(id)?;
                continue;
            }
            let ended = host.index.complete(id)?;
            if let (Outcome::Stored, Some(place)) = (ended.outcome, ended.transfer.destination) {
                let name = BlockName::from_u128(ended.transfer.key);
                self.events.host_stored(place.slot, name)?;
            }
        }
        Ok(self.end_waits(&loads, succeeded))
    }

    /// The sequences that waited for loads which failed; after a success they wait no more.
    fn end_waits(&mut self, loads: &HashSet<TransferId>, succeeded: bool) -> Vec<i64> {
        if loads.is_empty() {
            return Vec::new();
        }
        let mut without = Vec::new();
        for (id, sequence) in &mut self.sequences {
            if !sequence.awaits_load.is_some_and(|load| loads.contains(&load)) {
                continue;
            }
            if succeeded {
                sequence.awaits_load = None;
            } else {
                without.push(*id);
            }
        }
        without.sort_unstable();
        without
    }
}

fn lost() -> CacheError {
    CacheError::Invariant("the host tier has no block that it had".into())
}
