//! Loading of tiktoken, tekken and `SentencePiece` files as Python sees it.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokenizer::Result;
use tokenizer::formats::sentence_piece::{self, SentencePieceOptions};
use tokenizer::formats::tiktoken::{self, NamedToken, TiktokenOptions};
use tokenizer::formats::{FormatTokenizer, tekken};

use crate::errors::detached;
use crate::tokenizer::NativeTokenizer;

/// Load a tiktoken file; `special_tokens` are text, id, and whether a decode may leave it out.
#[pyfunction]
pub(crate) fn load_tiktoken(
    py: Python<'_>,
    path: PathBuf,
    pattern: Option<String>,
    special_tokens: Option<Vec<(String, u32, bool)>>,
) -> PyResult<(NativeTokenizer, Bound<'_, PyDict>)> {
    let special_tokens = special_tokens.map(|tokens| {
        tokens
            .into_iter()
            .map(|(content, id, special)| NamedToken { content, id, special })
            .collect()
    });
    let options = TiktokenOptions {
        pattern,
        special_tokens,
    };
    loaded(py, move || tiktoken::load(&path, &options))
}

/// Load a `tekken.json`.
#[pyfunction]
pub(crate) fn load_tekken(py: Python<'_>, path: PathBuf) -> PyResult<(NativeTokenizer, Bound<'_, PyDict>)> {
    loaded(py, move || tekken::load(&path))
}

/// Load a `SentencePiece` model file; the flags say whether its first and last tokens go around a text.
#[pyfunction]
pub(crate) fn load_sentence_piece(
    py: Python<'_>,
    path: PathBuf,
    add_first: Option<bool>,
    add_last: Option<bool>,
) -> PyResult<(NativeTokenizer, Bound<'_, PyDict>)> {
    let options = SentencePieceOptions {
        add_bos: add_first,
        add_eos: add_last,
    };
    loaded(py, move || sentence_piece::load(&path, options))
}

fn loaded(
    py: Python<'_>,
    load: impl FnOnce() -> Result<FormatTokenizer> + Send,
) -> PyResult<(NativeTokenizer, Bound<'_, PyDict>)> {
    let loaded = detached(py, load)?;
    let facts = PyDict::new(py);
    for (role, text) in &loaded.roles {
        facts.set_item(format!("{role}_token"), text)?;
    }
    facts.set_item("eos_token_ids", &loaded.eos_ids)?;
    Ok((NativeTokenizer::new(loaded.tokenizer), facts))
}
