//! Maps the crate's errors one to one onto the exceptions of `llm_tokenizer.errors`, and panics onto the base.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use tokenizer::{Error, Result};

/// Run `work` without the GIL; errors and panics become the package's exceptions.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| caught(work)).map_err(|error| exception(py, &error))
}

/// The same for work too short to let go of the interpreter: who does it for each token of a vocabulary would
/// wait for the interpreter as often.
pub(crate) fn attached<T>(py: Python<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    caught(work).map_err(|error| exception(py, &error))
}

fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::Library("a defect ended this call (panic)".to_owned())))
}

fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failed| failed)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let module = py.import("llm_tokenizer.errors")?;
    let value = match error {
        Error::File(message) => module.getattr("TokenizerFileError")?.call1((message,))?,
        Error::InvalidArgument { field, message } => {
            module.getattr("InvalidArgument")?.call1((*field, message))?
        }
        Error::Library(_) => module.getattr("TokenizerError")?.call1((error.to_string(),))?,
    };
    Ok(PyErr::from_value(value))
}
