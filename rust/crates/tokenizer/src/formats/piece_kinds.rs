//! Owns the numbers of a token's kind, which GGUF and `SentencePiece` files share.

pub(crate) const NORMAL: i128 = 1;
pub(crate) const UNKNOWN: i128 = 2;
pub(crate) const CONTROL: i128 = 3;
pub(crate) const USER_DEFINED: i128 = 4;
pub(crate) const UNUSED: i128 = 5;
pub(crate) const BYTE: i128 = 6;
