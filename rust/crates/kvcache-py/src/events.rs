//! Owns the Python class around an event log and the conversion of events: each is a tuple in the order of the wire
//! format, keys joined and token ids as little endian bytes.

use std::sync::Mutex;

use kvcache_events::{Batch, Event, EventError, EventLog, Key, Stored};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::InvalidArgument;
use crate::locked::locked;

pyo3::import_exception!(llm_kvcache.errors, EventGap);
pyo3::import_exception!(llm_kvcache.errors, EventsDisabled);
pyo3::import_exception!(llm_kvcache.errors, WireError);

/// Epoch, sequence number, whether it is a snapshot, events.
pub(crate) type BatchTuple<'py> = (u64, u64, bool, Vec<Bound<'py, PyTuple>>);

/// The Python exception of an error.
#[allow(clippy::needless_pass_by_value, reason = "a mapping for map_err")]
pub(crate) fn to_py(error: EventError) -> PyErr {
    match error {
        EventError::Invalid { field, reason } => InvalidArgument::new_err((field, None::<u64>, reason)),
        EventError::Gap { wanted, oldest, next } => EventGap::new_err((wanted, oldest, next)),
        EventError::Disabled => EventsDisabled::new_err(error.to_string()),
        EventError::Version(_) | EventError::Malformed { .. } => WireError::new_err(error.to_string()),
    }
}

fn joined<'py>(py: Python<'py>, keys: &[Key]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, keys.as_flattened())
}

/// An event as a tuple.
fn event_to_py<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Stored(stored) => (
            0,
            joined(py, &stored.keys),
            stored.parent,
            PyBytes::new(
                py,
                &stored
                    .token_ids
                    .iter()
                    .flat_map(|id| id.to_le_bytes())
                    .collect::<Vec<_>>(),
            ),
            stored.block_size,
            stored.group,
            &*stored.tier,
            stored.lora.as_deref(),
            stored.has_extra_keys,
        )
            .into_pyobject(py),
        Event::Removed { keys, group, tier } => (1, joined(py, keys), group, &**tier).into_pyobject(py),
        Event::Moved {
            keys,
            group,
            from,
            to,
            is_copy,
        } => (2, joined(py, keys), group, &**from, &**to, *is_copy).into_pyobject(py),
        Event::Cleared { tier } => (3, tier.as_deref()).into_pyobject(py),
    }
}

/// A batch as a tuple, for `llm_kvcache.events.batch_from_native`.
pub(crate) fn batch_to_py<'py>(py: Python<'py>, batch: &Batch) -> PyResult<BatchTuple<'py>> {
    let events = batch.events.iter().map(|event| event_to_py(py, event));
    Ok((
        batch.epoch,
        batch.seq,
        batch.is_snapshot,
        events.collect::<PyResult<_>>()?,
    ))
}

fn keys_from_py(joined: &[u8]) -> Vec<Key> {
    let (keys, _) = joined.as_chunks();
    keys.to_vec()
}

type StoredTuple = (
    u8,
    PyBackedBytes,
    Option<Key>,
    PyBackedBytes,
    u32,
    u32,
    String,
    Option<String>,
    bool,
);

fn stored_from_py(tuple: &Bound<'_, PyTuple>) -> PyResult<Stored> {
    let (_, keys, parent, tokens, block_size, group, tier, lora, has_extra_keys) =
        tuple.extract::<StoredTuple>()?;
    let (tokens, _) = tokens.as_chunks();
    Ok(Stored {
        keys: keys_from_py(&keys),
        parent,
        token_ids: tokens.iter().map(|id| u32::from_le_bytes(*id)).collect(),
        block_size,
        group,
        tier: tier.into(),
        lora: lora.map(Into::into),
        has_extra_keys,
    })
}

/// An event from the tuple that `llm_kvcache.events` makes of it.
fn event_from_py(tuple: &Bound<'_, PyTuple>) -> PyResult<Event> {
    match tuple.get_item(0)?.extract::<u8>()? {
        0 => stored_from_py(tuple).map(Event::Stored),
        1 => {
            let (_, keys, group, tier) = tuple.extract::<(u8, PyBackedBytes, u32, String)>()?;
            Ok(Event::Removed {
                keys: keys_from_py(&keys),
                group,
                tier: tier.into(),
            })
        }
        2 => {
            let (_, keys, group, from, to, is_copy) =
                tuple.extract::<(u8, PyBackedBytes, u32, String, String, bool)>()?;
            Ok(Event::Moved {
                keys: keys_from_py(&keys),
                group,
                from: from.into(),
                to: to.into(),
                is_copy,
            })
        }
        _ => {
            let (_, tier) = tuple.extract::<(u8, Option<String>)>()?;
            Ok(Event::Cleared {
                tier: tier.map(Into::into),
            })
        }
    }
}

fn events_from_py(events: &[Bound<'_, PyTuple>]) -> PyResult<Vec<Event>> {
    events.iter().map(event_from_py).collect()
}

/// The bytes of a batch.
#[pyfunction]
pub(crate) fn encode_events<'py>(
    py: Python<'py>,
    epoch: u64,
    seq: u64,
    is_snapshot: bool,
    events: Vec<Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let batch = Batch {
        epoch,
        seq,
        is_snapshot,
        events: events_from_py(&events)?,
    };
    let bytes = py.detach(|| kvcache_events::encode(&batch)).map_err(to_py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// The batch that some bytes stand for.
#[pyfunction]
pub(crate) fn decode_events(py: Python<'_>, data: PyBackedBytes) -> PyResult<BatchTuple<'_>> {
    let batch = py.detach(|| kvcache_events::decode(&data)).map_err(to_py)?;
    batch_to_py(py, &batch)
}

/// A log that threads may share: each call holds the lock, and not the GIL.
#[pyclass(frozen, module = "llm_kvcache._native")]
pub(crate) struct Events {
    log: Mutex<EventLog>,
}

impl Events {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut EventLog) -> Result<T, EventError> + Send,
    ) -> PyResult<T> {
        locked(py, &self.log, to_py, work)
    }
}

#[pymethods]
impl Events {
    #[new]
    fn new(capacity: usize, epoch: u64) -> Self {
        Self {
            log: Mutex::new(EventLog::new(capacity, epoch)),
        }
    }

    fn push(&self, py: Python<'_>, event: &Bound<'_, PyTuple>) -> PyResult<()> {
        let event = event_from_py(event)?;
        self.with(py, |log| log.push(event))
    }

    fn since<'py>(&self, py: Python<'py>, seq: u64, limit: Option<usize>) -> PyResult<BatchTuple<'py>> {
        let batch = self.with(py, |log| log.page(seq, limit.unwrap_or(usize::MAX)))?;
        batch_to_py(py, &batch)
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<BatchTuple<'py>> {
        let batch = self.with(py, EventLog::drain)?;
        batch_to_py(py, &batch)
    }

    fn snapshot<'py>(&self, py: Python<'py>, events: Vec<Bound<'py, PyTuple>>) -> PyResult<BatchTuple<'py>> {
        let events = events_from_py(&events)?;
        let batch = self.with(py, |log| log.snapshot(events))?;
        batch_to_py(py, &batch)
    }

    /// Capacity, epoch, first number kept, next number.
    fn state(&self, py: Python<'_>) -> PyResult<(usize, u64, u64, u64)> {
        self.with(py, |log| {
            Ok((log.capacity(), log.epoch(), log.oldest_seq(), log.next_seq()))
        })
    }
}
