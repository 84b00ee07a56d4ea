//! Owns the GPT-2 pattern, which byte-level pre-tokenizers apply themselves.
//!
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

use super::cursor::Cursor;
use crate::unicode::{LETTER, NUMBER, SPACE};

/// The end of the piece that starts at `at`. Every text is covered without gaps.
#[inline]
pub(super) fn next(cursor: &Cursor, at: usize) -> usize {
    if let Some(end) = cursor.contraction(at) {
        return end;
    }
    let (first, len) = cursor.class(at);
    let (body, flags) = if cursor.text[at] == b' ' {
        (at + len, cursor.class(at + len).0)
    } else {
        (at, first)
    };
    if flags & LETTER != 0 {
        cursor.skip(body, LETTER)
    } else if flags & NUMBER != 0 {
        cursor.skip(body, NUMBER)
    } else if flags & SPACE == 0 && body < cursor.text.len() {
        cursor.skip_not(body, SPACE | LETTER | NUMBER)
    } else {
        cursor.white_space(at)
    }
}
