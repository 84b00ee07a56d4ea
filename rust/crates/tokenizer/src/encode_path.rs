//! Owns the choice between the fast byte-level path and the library for encoding. Knows no file format.

use std::sync::OnceLock;

use tokenizer_bpe::FastBpe;
use tokenizers::Tokenizer;

use crate::error::{Error, Result};
use crate::text_tokenizer::fence;

/// Ids with the characters of the text that each stands for.
pub type IdsWithOffsets = (Vec<u32>, Vec<(usize, usize)>);

/// The fast path of one library tokenizer, made when the first text is encoded; or the reason why there is none.
#[derive(Default)]
pub(crate) struct EncodePath {
    fast: OnceLock<std::result::Result<FastBpe, String>>,
}

impl EncodePath {
    /// Why texts take the library, or `None` where they take the fast path.
    pub(crate) fn reason(&self, library: &Tokenizer) -> Option<&str> {
        self.fast(library).as_ref().err().map(String::as_str)
    }

    /// The ids of `text`.
    pub(crate) fn encode(
        &self,
        library: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>> {
        let ids = fence(|| match self.fast(library) {
            Ok(fast) => Ok(fast.encode(text, add_special_tokens)),
            Err(_) => Ok(library.encode_fast(text, add_special_tokens)?.get_ids().to_vec()),
        });
        ids.map_err(Error::Library)
    }

    /// The ids of `text` with their characters.
    pub(crate) fn encode_with_offsets(
        &self,
        library: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<IdsWithOffsets> {
        let encoded = fence(|| {
            if let Ok(fast) = self.fast(library) {
                return Ok(fast.encode_with_offsets(text, add_special_tokens));
            }
            let encoding = library.encode_char_offsets(text, add_special_tokens)?;
            Ok((encoding.get_ids().to_vec(), encoding.get_offsets().to_vec()))
        });
        encoded.map_err(Error::Library)
    }

    /// The ids of each text, on as many threads as are worth while.
    pub(crate) fn encode_batch(
        &self,
        library: &Tokenizer,
        texts: Vec<String>,
        add_special_tokens: bool,
    ) -> Result<Vec<Vec<u32>>> {
        let ids = fence(|| {
            if let Ok(fast) = self.fast(library) {
                return Ok(fast.encode_batch(&texts, add_special_tokens, 0));
            }
            let encodings = library.encode_batch_fast(texts, add_special_tokens)?;
            Ok((encodings.iter())
                .map(|encoding| encoding.get_ids().to_vec())
                .collect())
        });
        ids.map_err(Error::Library)
    }

    fn fast(&self, library: &Tokenizer) -> &std::result::Result<FastBpe, String> {
        self.fast.get_or_init(|| build(library))
    }
}

/// The library's own writing of the tokenizer names all that was added or changed after the file was read.
fn build(library: &Tokenizer) -> std::result::Result<FastBpe, String> {
    let json = fence(|| library.to_string(false))?;
    let fast = FastBpe::from_json(&json).map_err(|reason| reason.to_string())?;
    Ok(if library.get_encode_special_tokens() {
        fast.ignoring_special_tokens()
    } else {
        fast
    })
}
