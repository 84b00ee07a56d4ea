//! The detokenizer class as Python sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokenizer::{Detokenizer, OpenOptions, TextTokenizer};

use crate::errors::detached;

/// Rows of text in the making. Calls from several threads take turns.
#[pyclass(frozen, module = "llm_tokenizer._native")]
pub(crate) struct NativeDetokenizer {
    inner: Mutex<Detokenizer>,
}

impl NativeDetokenizer {
    pub(crate) fn new(tokenizer: Arc<TextTokenizer>) -> Self {
        Self {
            inner: Mutex::new(Detokenizer::new(tokenizer)),
        }
    }

    fn rows(&self) -> MutexGuard<'_, Detokenizer> {
        // Rows are valid between calls, whatever ended the call that poisoned the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl NativeDetokenizer {
    fn open(
        &self,
        py: Python<'_>,
        prompt_ids: Vec<u32>,
        skip_special_tokens: bool,
        stop: Vec<String>,
        include_stop_str_in_output: bool,
    ) -> PyResult<usize> {
        let options = OpenOptions {
            prompt_ids,
            skip_special_tokens,
            stop,
            include_stop_str_in_output,
        };
        detached(py, || self.rows().open(&options))
    }

    #[pyo3(signature = (slots, ids, offsets=None))]
    fn step<'py>(
        &self,
        py: Python<'py>,
        slots: PyReadonlyArray1<'py, i32>,
        ids: PyReadonlyArray1<'py, i32>,
        offsets: Option<PyReadonlyArray1<'py, i32>>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyArray1<i32>>)> {
        // Copies of a few bytes a row, so that the arrays need not stay still while the GIL is released.
        let slots: Vec<i32> = slots.as_array().to_vec();
        let ids: Vec<i32> = ids.as_array().to_vec();
        let offsets: Option<Vec<i32>> = offsets.map(|offsets| offsets.as_array().to_vec());
        let step = detached(py, || self.rows().step(&slots, &ids, offsets.as_deref()))?;
        let texts = PyList::new(py, step.texts())?;
        Ok((texts, PyArray1::from_vec(py, step.stops)))
    }

    fn finish(&self, py: Python<'_>, slot: i64) -> PyResult<String> {
        detached(py, || self.rows().finish(slot))
    }

    fn close(&self, py: Python<'_>, slot: i64) -> PyResult<()> {
        detached(py, || self.rows().close(slot))
    }

    #[getter]
    fn num_open(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, || Ok(self.rows().num_open()))
    }
}
