//! Tokenizers inside GGUF files: the metadata reader and the rebuilding of a `tokenizer.json`.

mod byte_level;
mod keys;
mod metadata;
mod pre_tokenizers;
mod sentence_piece;
mod vocabulary;
mod word_piece;

pub use metadata::{Metadata, Value, read_metadata};
pub use vocabulary::{GgufTokenizer, load};
