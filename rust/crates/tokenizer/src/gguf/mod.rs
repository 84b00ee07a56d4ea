//! Tokenizers inside GGUF files: the metadata reader and the rebuilding of a `tokenizer.json`.

mod metadata;
mod pre_tokenizers;
mod vocabulary;

pub use metadata::{Metadata, Value, read_metadata};
pub use vocabulary::{GgufTokenizer, load};
