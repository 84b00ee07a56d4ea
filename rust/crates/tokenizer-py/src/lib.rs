//! Python bindings of the `tokenizer` crate: conversion of arguments, the GIL, and errors. No logic of its own.

// PyO3 hands arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod detokenizer;
mod errors;
mod formats;
mod tokenizer;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<tokenizer::NativeTokenizer>()?;
    module.add_class::<detokenizer::NativeDetokenizer>()?;
    module.add_function(wrap_pyfunction!(formats::load_tiktoken, module)?)?;
    module.add_function(wrap_pyfunction!(formats::load_tekken, module)?)?;
    module.add_function(wrap_pyfunction!(formats::load_sentence_piece, module)?)?;
    Ok(())
}
