//! Tokenizer files other than `tokenizer.json` and GGUF: tiktoken ranks, Mistral's tekken, `SentencePiece` models.
//!
//! Each reader rebuilds the `tokenizer.json` that the format amounts to, in the structure and with the regular
//! expressions that the models' own files use, so that everything behind it sees one format only.

mod base64;
mod byte_level;
mod charsmap;
pub(crate) mod json_pieces;
pub(crate) mod known_ranks;
pub(crate) mod piece_kinds;
mod protobuf;
mod rank_merges;
mod scored_merges;
pub mod sentence_piece;
pub(crate) mod sentence_piece_model;
pub mod tekken;
pub mod tiktoken;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::text_tokenizer::TextTokenizer;

/// No tokenizer file is near this size; one that is larger is refused before it is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A tokenizer with what its file says around it.
pub struct FormatTokenizer {
    /// Encodes and decodes.
    pub tokenizer: TextTokenizer,
    /// Token texts by role: `bos`, `eos`, `pad`, `unk`.
    pub roles: Vec<(&'static str, String)>,
    /// Every id that ends a text or a turn.
    pub eos_ids: Vec<u32>,
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = |reason: std::io::Error| Error::File(format!("cannot read {}: {reason}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let mut content = Vec::new();
    let size = file
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if size as u64 > MAX_FILE_BYTES {
        return Err(Error::File(format!(
            "{} is larger than {MAX_FILE_BYTES} bytes, which is no tokenizer",
            path.display()
        )));
    }
    Ok(content)
}

/// Name the file in an error about its content.
fn in_file<T>(path: &Path, outcome: Result<T>) -> Result<T> {
    outcome.map_err(|error| match error {
        Error::File(reason) => Error::File(format!("{}: {reason}", path.display())),
        other => other,
    })
}
