//! Owns the third pattern of DeepSeek V3 and V4, the one that leaves gaps.
//!
//! ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|``
//! `\s*[\r\n]+|\s+(?!\S)|\s+`

use super::cursor::Cursor;
use crate::unicode::{ASCII_LETTER, ASCII_PUNCTUATION, LETTER, MARK, NEWLINE, PUNCTUATION, SPACE, SYMBOL};

/// The end of the match that starts at `at`, or `None` where none does.
#[inline]
fn matched(cursor: &Cursor, at: usize) -> Option<usize> {
    let (flags, len) = cursor.class(at);
    let (next, next_len) = cursor.class(at + len);
    if flags & ASCII_PUNCTUATION != 0 && next & ASCII_LETTER != 0 {
        return Some(cursor.skip(at + len, ASCII_LETTER));
    }
    if flags & (LETTER | MARK) != 0 {
        return Some(cursor.skip(at + len, LETTER | MARK));
    }
    let outside = NEWLINE | PUNCTUATION | SYMBOL;
    if flags & outside == 0 && next & (LETTER | MARK) != 0 {
        return Some(cursor.skip(at + len + next_len, LETTER | MARK));
    }
    if flags & (PUNCTUATION | SYMBOL) != 0 || (cursor.text[at] == b' ' && next & (PUNCTUATION | SYMBOL) != 0)
    {
        return Some(cursor.skip(cursor.skip(at + len, PUNCTUATION | SYMBOL), NEWLINE));
    }
    (flags & SPACE != 0).then(|| cursor.white_space_or_lines(at))
}

/// Call `emit` with the bounds of every piece; characters that nothing matches form pieces of their own.
#[inline]
pub(super) fn scan(cursor: &Cursor, mut emit: impl FnMut(usize, usize)) {
    let (mut at, mut gap) = (0, 0);
    while at < cursor.text.len() {
        if let Some(end) = matched(cursor, at) {
            if gap < at {
                emit(gap, at);
            }
            emit(at, end);
            (at, gap) = (end, end);
        } else {
            at += cursor.class(at).1;
        }
    }
    if gap < at {
        emit(gap, at);
    }
}
