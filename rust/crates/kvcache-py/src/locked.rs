//! Owns the lock around a native object: the GIL is released while it is held, and a panic becomes an exception.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use pyo3::prelude::*;

use crate::errors::InvariantError;

/// Runs `work` on the object behind the lock, without the GIL.
pub(crate) fn locked<S: Send, T: Send, E: Send>(
    py: Python<'_>,
    object: &Mutex<S>,
    to_py: impl Fn(E) -> PyErr,
    work: impl FnOnce(&mut S) -> Result<T, E> + Send,
) -> PyResult<T> {
    let result = py.detach(|| {
        let mut state = object
            .lock()
            .map_err(|_| "an earlier call panicked; the state is lost")?;
        catch_unwind(AssertUnwindSafe(|| work(&mut *state)))
            .map_err(|_| "the native library panicked; its message went to stderr")
    });
    match result {
        Ok(answer) => answer.map_err(to_py),
        Err(message) => Err(InvariantError::new_err(message)),
    }
}
