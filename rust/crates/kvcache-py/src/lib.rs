//! Python bindings of the cache: conversion, the lock, release of the GIL, error mapping. No logic of its own.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod arrays;
mod cache;
mod errors;
mod events;
mod locked;
mod policy;
mod tiers;

use std::sync::Arc;

use kvcache_prefix::{BlockHash, HASH_VERSION};
use kvcache_sequences::Sequence;
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::arrays::{chain_keys, hashing_layout, token_ids};
use crate::errors::{fence, to_py};

/// Salt, adapter and media items of a sequence, as they come from Python.
type Keys = (Option<Vec<u8>>, Option<String>, Vec<(i64, Vec<u8>)>);

/// The 16-byte hashes of the full blocks of a sequence.
#[pyfunction]
fn block_hashes(
    py: Python<'_>,
    tokens: PyReadonlyArray1<'_, i32>,
    block_size: i64,
    keys: Keys,
) -> PyResult<Vec<[u8; 16]>> {
    let layout = Arc::new(hashing_layout(block_size).map_err(|error| to_py(&error))?);
    let (tokens, keys) = (
        token_ids(&tokens)?,
        chain_keys(keys).map_err(|error| to_py(&error))?,
    );
    let hash = || {
        let sequence = Sequence::new(&layout, tokens, keys)?;
        Ok(sequence
            .hashes()
            .iter()
            .copied()
            .map(BlockHash::to_bytes)
            .collect())
    };
    py.detach(|| fence(hash)).map_err(|error| to_py(&error))
}

#[pymodule(gil_used = false)]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("HASH_VERSION", HASH_VERSION)?;
    module.add_function(wrap_pyfunction!(block_hashes, module)?)?;
    module.add("EVENT_WIRE_VERSION", kvcache_events::WIRE_VERSION)?;
    module.add_function(wrap_pyfunction!(events::encode_events, module)?)?;
    module.add_function(wrap_pyfunction!(events::decode_events, module)?)?;
    module.add_class::<events::Events>()?;
    module.add_class::<tiers::Tiers>()?;
    module.add_class::<cache::Cache>()
}
