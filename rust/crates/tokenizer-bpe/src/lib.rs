//! Owns the fast byte-level BPE: pre-tokenizers as hand-written scanners and the merge loop.
//!
//! [`FastBpe`] takes the text of a `tokenizer.json` and gives the ids and offsets that the `tokenizers` library
//! gives, several times faster. It takes the byte-level BPE family only: GPT-2, Llama 3 and 4, Qwen, DeepSeek,
//! GPT-4o and gpt-oss, Tekken, SmolLM, StarCoder, Falcon, Command R and their kin. Everything else is refused with
//! a reason ([`Unsupported`]), so that the caller can turn to the library. It knows nothing of decoding, files,
//! Python, or chat templates.
//!
//! Cost: linear in the text but for pieces without any cut (`n log n` in their length). Memory is bounded, see
//! [`FastBpe`].

mod added;
mod alphabet;
mod batch;
mod cache;
mod encoder;
mod encoding;
mod error;
mod load;
mod merge_loop;
mod merges;
mod model;
mod normalize;
mod piece_key;
mod place;
mod post;
mod scan;
mod unicode;
mod vocabulary;

pub use encoder::{FastBpe, IdsWithOffsets};
pub use error::Unsupported;
