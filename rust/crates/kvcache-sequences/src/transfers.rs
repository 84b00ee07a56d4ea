//! Owns the copies that are due: between blocks of the device, and between the device and the host tier.

use std::collections::HashMap;

use kvcache_blocks::BlockId;
use kvcache_tiers::{Slot, TransferId};

/// Contents to copy. The order matters: a later transfer may overwrite what an earlier one reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// From a block of the device to another.
    Copy {
        /// The block to read.
        source: BlockId,
        /// The block to write.
        destination: BlockId,
    },
    /// From a block of the device to a slot of the host tier.
    Store {
        /// The block to read.
        source: BlockId,
        /// The slot to write.
        destination: Slot,
    },
    /// From a slot of the host tier to a block of the device.
    Load {
        /// The slot to read.
        source: Slot,
        /// The block to write.
        destination: BlockId,
    },
}

/// Names what [`KvCache::take_transfers`](crate::KvCache::take_transfers) handed over.
pub type BatchId = i64;

/// Transfers to carry out one after the other before the next step writes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfers {
    /// For [`KvCache::finish_transfers`](crate::KvCache::finish_transfers); none where nothing waits for the end.
    pub batch: Option<BatchId>,
    /// In their order.
    pub moves: Vec<Transfer>,
}

/// A transfer that the host tier's index must hear the end of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostTransfer {
    pub(crate) id: TransferId,
    /// Whether sequences wait for it.
    pub(crate) is_load: bool,
}

/// Transfers that nobody has taken, and those of the host tier that were taken and have not ended.
#[derive(Debug, Default)]
pub(crate) struct PendingTransfers {
    moves: Vec<Transfer>,
    /// Of `moves`, those of the host tier.
    host: Vec<HostTransfer>,
    batches: HashMap<BatchId, Vec<HostTransfer>>,
    next_batch: BatchId,
}

impl PendingTransfers {
    pub(crate) fn copy(&mut self, source: BlockId, destination: BlockId) {
        self.moves.push(Transfer::Copy { source, destination });
    }

    pub(crate) fn store(&mut self, id: TransferId, source: BlockId, destination: Slot) {
        self.moves.push(Transfer::Store { source, destination });
        self.host.push(HostTransfer { id, is_load: false });
    }

    pub(crate) fn load(&mut self, id: TransferId, source: Slot, destination: BlockId) {
        self.moves.push(Transfer::Load { source, destination });
        self.host.push(HostTransfer { id, is_load: true });
    }

    pub(crate) fn take(&mut self) -> Transfers {
        let batch = (!self.host.is_empty()).then(|| {
            self.next_batch += 1;
            self.batches
                .insert(self.next_batch, std::mem::take(&mut self.host));
            self.next_batch
        });
        Transfers {
            batch,
            moves: std::mem::take(&mut self.moves),
        }
    }

    pub(crate) fn end(&mut self, batch: BatchId) -> Option<Vec<HostTransfer>> {
        self.batches.remove(&batch)
    }

    /// Number of transfers that the host tier's index counts as in flight.
    pub(crate) fn num_host(&self) -> usize {
        self.host.len() + self.batches.values().map(Vec::len).sum::<usize>()
    }
}
