//! Owns the Python class around a tier index. Keys come joined, 16 bytes each; tiers come by name.

use std::sync::Mutex;

use kvcache_tiers::{
    Batch, Ended, Key, Outcome, Phase, Place, Source, TierConfig, TierError, TierId, TierIndex, TierStats,
    Transfer, TransferId,
};
use pyo3::prelude::*;

use crate::errors::{InvalidArgument, InvariantError};
use crate::locked::locked;

pyo3::import_exception!(llm_kvcache.errors, NoRoom);
pyo3::import_exception!(llm_kvcache.errors, NotResident);
pyo3::import_exception!(llm_kvcache.errors, TierLost);
pyo3::import_exception!(llm_kvcache.errors, UnknownTransfer);

type KeyBytes = [u8; 16];
/// Tier number and slot.
type PlaceTuple = (u8, u32);
/// Id, key, source, destination.
type TransferTuple = (TransferId, KeyBytes, Option<PlaceTuple>, Option<PlaceTuple>);
type BatchTuple = (Vec<TransferTuple>, Vec<KeyBytes>);
/// In the order of the fields of `llm_kvcache.TierStats`.
type StatsTuple = (
    String,
    Option<usize>,
    bool,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    u64,
);

/// The Python exception of an error; tiers are named.
fn to_py(error: TierError, names: &[String]) -> PyErr {
    let name = |tier: TierId| {
        names
            .get(tier.0 as usize)
            .cloned()
            .unwrap_or_else(|| tier.to_string())
    };
    let invalid = |field: &str, value: String, reason: &str| {
        InvalidArgument::new_err((field.to_owned(), value, reason.to_owned()))
    };
    match error {
        TierError::BadTiers(reason) => invalid("tiers", names.join(", "), &reason),
        TierError::UnknownTier(tier) => invalid("tier", tier, "there is no tier of this name"),
        TierError::UnknownTransfer(id) => UnknownTransfer::new_err(id),
        TierError::TwiceTransfer(id) => InvalidArgument::new_err(("ids", id, "must not come twice")),
        TierError::TwiceKey(key) => {
            InvalidArgument::new_err(("keys", key.to_le_bytes(), "must not come twice"))
        }
        TierError::NotResident { key, tier } => NotResident::new_err((key.to_le_bytes(), tier.map(name))),
        TierError::Present { key, tier } => {
            let reason = format!("is in tier {:?} already, or on its way there", name(tier));
            InvalidArgument::new_err(("key", key.to_le_bytes(), reason))
        }
        TierError::NoRoom {
            tier,
            needed,
            available,
        } => NoRoom::new_err((name(tier), needed, available)),
        TierError::TierLost(tier) => TierLost::new_err(name(tier)),
        TierError::SameTier(tier) => invalid("to", name(tier), "must not be the tier moved from"),
        TierError::Pinned { key, tier } => {
            let reason = format!("is pinned in tier {:?}, so a move may not drop it", name(tier));
            InvalidArgument::new_err(("key", key.to_le_bytes(), reason))
        }
        TierError::NotPinned { key, tier } => {
            let reason = format!("is not pinned in tier {:?}", name(tier));
            InvalidArgument::new_err(("key", key.to_le_bytes(), reason))
        }
        TierError::TooMany { key, tier } => {
            let reason = format!("has too many pins or readers in tier {:?}", name(tier));
            InvalidArgument::new_err(("key", key.to_le_bytes(), reason))
        }
        TierError::Invariant(message) => InvariantError::new_err(message),
    }
}

/// The Python face hands over whole keys only; what is left of a division would be its error.
fn keys(joined: &[u8]) -> Vec<Key> {
    let (keys, _) = joined.as_chunks();
    keys.iter().map(|key| Key::from_le_bytes(*key)).collect()
}

fn place(place: Place) -> PlaceTuple {
    (place.tier.0, place.slot)
}

fn transfer(transfer: &Transfer) -> TransferTuple {
    (
        transfer.id,
        transfer.key.to_le_bytes(),
        transfer.source.map(place),
        transfer.destination.map(place),
    )
}

fn batch(batch: &Batch) -> BatchTuple {
    let evicted = batch.evicted.iter().map(|key| key.to_le_bytes());
    (batch.transfers.iter().map(transfer).collect(), evicted.collect())
}

fn ended(ended: &Ended) -> (TransferTuple, &'static str) {
    let outcome = match ended.outcome {
        Outcome::Stored => "stored",
        Outcome::Loaded => "loaded",
        Outcome::Copied => "copied",
        Outcome::Moved => "moved",
        Outcome::Failed => "failed",
    };
    (transfer(&ended.transfer), outcome)
}

fn source(keep: bool) -> Source {
    if keep { Source::Keep } else { Source::Drop }
}

fn stats(stats: TierStats) -> StatsTuple {
    (
        stats.name,
        stats.capacity,
        stats.is_lost,
        stats.resident,
        stats.arriving,
        stats.leaving,
        stats.free,
        stats.idle,
        stats.pinned,
        stats.evictions,
    )
}

/// An index that threads may share: each call holds the lock, and not the GIL.
#[pyclass(frozen, module = "llm_kvcache._native")]
pub(crate) struct Tiers {
    names: Vec<String>,
    index: Mutex<TierIndex>,
}

impl Tiers {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut TierIndex) -> Result<T, TierError> + Send,
    ) -> PyResult<T> {
        locked(py, &self.index, |error| to_py(error, &self.names), work)
    }

    /// Runs `work` with the one tier that it is about.
    fn at<T: Send>(
        &self,
        py: Python<'_>,
        tier: &str,
        work: impl FnOnce(&mut TierIndex, TierId) -> Result<T, TierError> + Send,
    ) -> PyResult<T> {
        self.with(py, |index| {
            let tier = index.tier(tier)?;
            work(index, tier)
        })
    }
}

#[pymethods]
impl Tiers {
    #[new]
    fn new(tiers: Vec<(String, Option<usize>)>) -> PyResult<Self> {
        let names = tiers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let configs = tiers
            .into_iter()
            .map(|(name, capacity)| TierConfig { name, capacity });
        let index = TierIndex::new(configs).map_err(|error| to_py(error, &names))?;
        Ok(Self {
            names,
            index: Mutex::new(index),
        })
    }

    fn insert(&self, py: Python<'_>, key: KeyBytes, tier: &str) -> PyResult<(u32, Option<KeyBytes>)> {
        let inserted = self.at(py, tier, |index, tier| {
            index.insert(Key::from_le_bytes(key), tier)
        })?;
        Ok((inserted.slot, inserted.evicted.map(Key::to_le_bytes)))
    }

    fn locate(&self, py: Python<'_>, joined: &[u8]) -> PyResult<Vec<PlaceTuple>> {
        let keys = keys(joined);
        let places = self.with(py, |index| Ok(index.locate(&keys)))?;
        Ok(places.into_iter().map(place).collect())
    }

    /// Slot, whether its contents are there, readers, pins.
    fn entry(&self, py: Python<'_>, key: KeyBytes, tier: &str) -> PyResult<Option<(u32, bool, u32, u16)>> {
        let entry = self.at(py, tier, |index, tier| index.entry(Key::from_le_bytes(key), tier))?;
        Ok(entry.map(|entry| {
            let is_resident = entry.phase == Phase::Resident;
            (entry.place.slot, is_resident, entry.readers, entry.pins)
        }))
    }

    fn begin_store(&self, py: Python<'_>, joined: &[u8], to: &str) -> PyResult<BatchTuple> {
        let keys = keys(joined);
        let begun = self.at(py, to, |index, to| index.begin_store_many(&keys, to))?;
        Ok(batch(&begun))
    }

    fn begin_load(
        &self,
        py: Python<'_>,
        joined: &[u8],
        source: Option<&str>,
    ) -> PyResult<Vec<TransferTuple>> {
        let keys = keys(joined);
        let begun = self.with(py, |index| {
            let source = source.map(|name| index.tier(name)).transpose()?;
            index.begin_load_many(&keys, source)
        })?;
        Ok(begun.iter().map(transfer).collect())
    }

    fn begin_move(
        &self,
        py: Python<'_>,
        joined: &[u8],
        from: &str,
        to: &str,
        keep: bool,
    ) -> PyResult<BatchTuple> {
        let keys = keys(joined);
        let begun = self.at(py, to, |index, to| {
            let from = index.tier(from)?;
            index.begin_move_many(&keys, from, to, source(keep))
        })?;
        Ok(batch(&begun))
    }

    fn demote(&self, py: Python<'_>, joined: &[u8], to: &str, keep: bool) -> PyResult<BatchTuple> {
        let keys = keys(joined);
        let begun = self.at(py, to, |index, to| index.demote_many(&keys, to, source(keep)))?;
        Ok(batch(&begun))
    }

    fn promote(&self, py: Python<'_>, joined: &[u8], to: &str) -> PyResult<BatchTuple> {
        let keys = keys(joined);
        let begun = self.at(py, to, |index, to| index.promote_many(&keys, to))?;
        Ok(batch(&begun))
    }

    fn transfer(&self, py: Python<'_>, transfer: TransferId) -> PyResult<Option<TransferTuple>> {
        let found = self.with(py, |index| Ok(index.transfer(transfer)))?;
        Ok(found.as_ref().map(self::transfer))
    }

    fn complete(&self, py: Python<'_>, ids: Vec<TransferId>) -> PyResult<Vec<(TransferTuple, &'static str)>> {
        let done = self.with(py, |index| index.complete_many(&ids))?;
        Ok(done.iter().map(ended).collect())
    }

    fn fail(&self, py: Python<'_>, ids: Vec<TransferId>) -> PyResult<Vec<(TransferTuple, &'static str)>> {
        let done = self.with(py, |index| index.fail_many(&ids))?;
        Ok(done.iter().map(ended).collect())
    }

    fn lose(&self, py: Python<'_>, key: KeyBytes, tier: &str) -> PyResult<Vec<TransferId>> {
        self.at(py, tier, |index, tier| index.lose(Key::from_le_bytes(key), tier))
    }

    fn lose_tier(&self, py: Python<'_>, tier: &str) -> PyResult<Vec<TransferId>> {
        self.at(py, tier, TierIndex::lose_tier)
    }

    fn restore_tier(&self, py: Python<'_>, tier: &str) -> PyResult<bool> {
        self.at(py, tier, TierIndex::restore_tier)
    }

    fn clear(&self, py: Python<'_>) -> PyResult<Vec<TransferId>> {
        self.with(py, |index| Ok(index.clear()))
    }

    fn remove(&self, py: Python<'_>, joined: &[u8], tier: Option<&str>) -> PyResult<usize> {
        let keys = keys(joined);
        self.with(py, |index| {
            let Some(tier) = tier.map(|name| index.tier(name)).transpose()? else {
                return Ok(keys.iter().map(|key| index.remove(*key)).sum());
            };
            let dropped = keys
                .iter()
                .map(|key| index.remove_from(*key, tier).map(usize::from));
            dropped.sum()
        })
    }

    fn touch(&self, py: Python<'_>, joined: &[u8]) -> PyResult<()> {
        let keys = keys(joined);
        self.with(py, |index| {
            index.touch(&keys);
            Ok(())
        })
    }

    fn pin(&self, py: Python<'_>, joined: &[u8], tier: &str) -> PyResult<()> {
        let keys = keys(joined);
        self.at(py, tier, |index, tier| index.pin_many(&keys, tier))
    }

    fn unpin(&self, py: Python<'_>, joined: &[u8], tier: &str) -> PyResult<()> {
        let keys = keys(joined);
        self.at(py, tier, |index, tier| index.unpin_many(&keys, tier))
    }

    fn victims(&self, py: Python<'_>, tier: &str, n: usize) -> PyResult<Vec<KeyBytes>> {
        let victims = self.at(py, tier, |index, tier| index.victims(tier, n))?;
        Ok(victims.into_iter().map(Key::to_le_bytes).collect())
    }

    /// Keys and slots.
    fn contents(&self, py: Python<'_>, tier: &str) -> PyResult<Vec<(KeyBytes, u32)>> {
        let contents = self.at(py, tier, |index, tier| index.contents(tier))?;
        let named = contents.into_iter().map(|(key, slot)| (key.to_le_bytes(), slot));
        Ok(named.collect())
    }

    fn available(&self, py: Python<'_>, tier: &str) -> PyResult<usize> {
        self.at(py, tier, |index, tier| index.available(tier))
    }

    fn num_in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |index| Ok(index.num_in_flight()))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Vec<StatsTuple>> {
        let all = self.with(py, |index| Ok(index.stats()))?;
        Ok(all.into_iter().map(stats).collect())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |index| index.check())
    }
}
