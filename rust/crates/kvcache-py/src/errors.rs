//! Owns the mapping of Rust errors and panics onto the exceptions of `llm_kvcache.errors`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvcache_sequences::CacheError;
use pyo3::PyErr;

pyo3::import_exception!(llm_kvcache.errors, UnknownSequence);
pyo3::import_exception!(llm_kvcache.errors, InvalidArgument);
pyo3::import_exception!(llm_kvcache.errors, InvariantError);
pyo3::import_exception!(llm_kvcache.errors, PinQuotaExceeded);
pyo3::import_exception!(llm_kvcache.errors, PolicyError);
pyo3::import_exception!(llm_kvcache.errors, UnknownPin);

/// The Python exception of an error.
pub(crate) fn to_py(error: &CacheError) -> PyErr {
    match error {
        CacheError::UnknownSequence(id) => UnknownSequence::new_err(*id),
        CacheError::InvalidArgument { field, value, reason } => {
            InvalidArgument::new_err((*field, *value, reason.clone()))
        }
        CacheError::UnknownPin(id) => UnknownPin::new_err(*id),
        CacheError::PinQuota { wanted, room } => PinQuotaExceeded::new_err((*wanted, *room)),
        CacheError::Policy(error) => PolicyError::new_err(error.to_string()),
        CacheError::Invariant(message) => InvariantError::new_err(message.clone()),
    }
}

/// Turns a panic of `work` into an error.
pub(crate) fn fence<T>(work: impl FnOnce() -> Result<T, CacheError>) -> Result<T, CacheError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(CacheError::Invariant(
            "the native library panicked; its message went to stderr".into(),
        ))
    })
}
