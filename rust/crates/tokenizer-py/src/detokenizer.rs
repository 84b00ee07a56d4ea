//! The detokenizer class as Python sees it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString};
use tokenizer::{Detokenizer, OpenOptions, TextTokenizer};

use crate::errors::detached;

/// Rows of text in the making. Calls from several threads take turns.
#[pyclass(frozen, module = "llm_tokenizer._native")]
pub(crate) struct NativeDetokenizer {
    inner: Mutex<Detokenizer>,
    strings: TokenStrings,
}

/// The Python strings of single tokens, made when they are first shown: most texts of a step are one token's.
struct TokenStrings {
    vocab_size: u32,
    strings: OnceLock<Vec<PyOnceLock<Py<PyString>>>>,
}

impl TokenStrings {
    fn get<'py>(&self, py: Python<'py>, id: u32, text: &str) -> Bound<'py, PyString> {
        let strings = self
            .strings
            .get_or_init(|| (0..self.vocab_size).map(|_| PyOnceLock::new()).collect());
        match strings.get(id as usize) {
            Some(string) => string
                .get_or_init(py, || PyString::new(py, text).unbind())
                .bind(py)
                .clone(),
            None => PyString::new(py, text),
        }
    }
}

impl NativeDetokenizer {
    pub(crate) fn new(tokenizer: Arc<TextTokenizer>) -> Self {
        Self {
            strings: TokenStrings {
                vocab_size: tokenizer.vocab_size(),
                strings: OnceLock::new(),
            },
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
        let texts = step.texts().map(|(text, token)| match token {
            Some(id) => self.strings.get(py, id, text),
            None => PyString::new(py, text),
        });
        let texts = PyList::new(py, texts)?;
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
