//! The tokenizer class as Python sees it.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokenizer::{AddedTokenSpec, TextTokenizer, gguf};

use crate::detokenizer::NativeDetokenizer;
use crate::errors::{attached, detached};

/// Content, stated id, `single_word`, `lstrip`, `rstrip`, `normalized`, `special`.
type AddedToken = (String, Option<u32>, bool, bool, bool, bool, bool);

/// An immutable tokenizer; every method may be called from several threads at once.
#[pyclass(frozen, module = "llm_tokenizer._native")]
pub(crate) struct NativeTokenizer {
    inner: Arc<TextTokenizer>,
}

impl NativeTokenizer {
    pub(crate) fn new(tokenizer: TextTokenizer) -> Self {
        Self {
            inner: Arc::new(tokenizer),
        }
    }
}

#[pymethods]
impl NativeTokenizer {
    /// Load a tokenizer.json; `added` are tokens that must be in the vocabulary.
    #[staticmethod]
    fn from_json(py: Python<'_>, json: &[u8], added: Vec<AddedToken>) -> PyResult<Self> {
        let specs: Vec<AddedTokenSpec> = added.into_iter().map(spec).collect();
        let inner = detached(py, || TextTokenizer::from_json(json)?.add_tokens(&specs))?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Load the tokenizer inside a GGUF file; returns it with what the file says around it.
    #[staticmethod]
    fn from_gguf(py: Python<'_>, path: PathBuf) -> PyResult<(Self, Bound<'_, PyDict>)> {
        let loaded = detached(py, || gguf::load(&path))?;
        let facts = PyDict::new(py);
        for (role, id) in &loaded.roles {
            facts.set_item(format!("{role}_token_id"), id)?;
        }
        facts.set_item("add_bos_token", loaded.add_bos_token)?;
        facts.set_item("add_eos_token", loaded.add_eos_token)?;
        facts.set_item("chat_templates", loaded.chat_templates)?;
        let inner = Arc::new(loaded.tokenizer);
        Ok((Self { inner }, facts))
    }

    #[pyo3(signature = (text, add_special_tokens, allow_special=true))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special_tokens: bool,
        allow_special: bool,
    ) -> PyResult<Vec<u32>> {
        detached(py, || {
            if allow_special {
                self.inner.encode(text, add_special_tokens)
            } else {
                self.inner.encode_plain(text, add_special_tokens)
            }
        })
    }

    #[pyo3(signature = (texts, add_special_tokens, allow_special=true))]
    fn encode_batch(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        add_special_tokens: bool,
        allow_special: bool,
    ) -> PyResult<Vec<Vec<u32>>> {
        detached(py, || {
            if allow_special {
                self.inner.encode_batch(texts, add_special_tokens)
            } else {
                self.inner.encode_batch_plain(texts, add_special_tokens)
            }
        })
    }

    /// The ids, and as one flat array where each starts and ends in characters.
    fn encode_with_offsets<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        add_special_tokens: bool,
    ) -> PyResult<(Vec<u32>, Bound<'py, PyArray1<i32>>)> {
        let (ids, offsets) = detached(py, || self.inner.encode_with_offsets(text, add_special_tokens))?;
        let flat: Vec<i32> = (offsets.iter())
            .flat_map(|&(start, end)| [start as i32, end as i32])
            .collect();
        Ok((ids, flat.into_pyarray(py)))
    }

    /// Why texts are encoded by the library, or `None` where the fast path encodes them.
    fn library_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        detached(py, || Ok(self.inner.library_reason().map(str::to_owned)))
    }

    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        detached(py, || self.inner.decode(&ids, skip_special_tokens))
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.inner.vocab_size()
    }

    fn special_ids(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        detached(py, || Ok(self.inner.special_ids()))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = attached(py, || self.inner.token_bytes(id))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn detokenizer(&self) -> NativeDetokenizer {
        NativeDetokenizer::new(Arc::clone(&self.inner))
    }
}

fn spec(token: AddedToken) -> AddedTokenSpec {
    let (content, id, single_word, lstrip, rstrip, normalized, special) = token;
    AddedTokenSpec {
        content,
        id,
        single_word,
        lstrip,
        rstrip,
        normalized,
        special,
    }
}
