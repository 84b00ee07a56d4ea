//! Tokenizers without Python: encode, incremental decode of many rows at once, stop strings, GGUF vocabularies.
//!
//! The text rules are those of the `tokenizers` crate, which does all encoding. This crate adds what a serving
//! loop needs: a per-token byte table so that a step of decoding costs a copy of a few bytes a row, exact
//! UTF-8 and byte-fallback handling across steps, stop strings with hold-back, and a reader for the tokenizer
//! inside a GGUF file. It knows nothing of Python, models, requests or chat templates.
//!
//! Cost: [`Detokenizer::step`] is one call for all rows of a step, linear in the bytes of the new tokens.

mod decode_state;
mod decode_whole;
mod decoder_chain;
mod detokenizer;
mod encode_path;
mod error;
pub mod formats;
pub mod gguf;
mod plain_text;
mod stop_strings;
mod text_stage;
mod text_tokenizer;
mod token_table;

pub use detokenizer::{Detokenizer, OpenOptions, StepText};
pub use encode_path::IdsWithOffsets;
pub use error::{Error, Result};
pub use text_tokenizer::{AddedTokenSpec, TextTokenizer};
