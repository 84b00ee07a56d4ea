//! Owns the patterns of the o200k family: GPT-4o, gpt-oss, Llama 4, and Tekken (Mistral).
//!
//! With `U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]`, `C = (?i:'s|'t|'re|'ve|'m|'ll|'d)`:
//! `[^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

use super::cursor::Cursor;
use crate::unicode::{LETTER, LOWERISH, MARK, NEWLINE, NUMBER, SPACE, UPPERISH};

/// What the patterns of the family differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct O200k {
    /// The most numbers in a piece.
    pub(crate) numbers: usize,
    /// Whether a contraction belongs to the word before it.
    pub(crate) contractions: bool,
}

impl O200k {
    /// The end of the piece that starts at `at`. Every text is covered without gaps.
    #[inline]
    pub(super) fn next(self, cursor: &Cursor, at: usize) -> usize {
        let (flags, len) = cursor.class(at);
        if let Some(end) = word(cursor, at, flags, len) {
            return self.with_contraction(cursor, end);
        }
        if flags & NUMBER != 0 {
            return cursor.skip_most(at + len, NUMBER, self.numbers - 1);
        }
        let apart = SPACE | LETTER | NUMBER;
        let (next, next_len) = cursor.class(at + len);
        if flags & SPACE == 0 || (cursor.text[at] == b' ' && next_len > 0 && next & apart == 0) {
            return lines_and_slashes(cursor, cursor.skip_not(at + len, apart));
        }
        cursor.white_space_or_lines(at)
    }

    #[inline]
    fn with_contraction(self, cursor: &Cursor, end: usize) -> usize {
        if self.contractions {
            cursor.contraction_any_case(end).unwrap_or(end)
        } else {
            end
        }
    }
}

/// The end of the word at `at`: both word alternatives, each with a character before the word and without.
#[inline]
fn word(cursor: &Cursor, at: usize, flags: u16, len: usize) -> Option<usize> {
    if flags & (LETTER | MARK) == LETTER {
        return ends_lower(cursor, at).or_else(|| ends_upper(cursor, at));
    }
    let prefix = flags & (LETTER | NUMBER | NEWLINE) == 0;
    // Only a mark can be both the character before the word and its first one.
    let mark = flags & MARK != 0;
    let after = at + len;
    let tried = if prefix { ends_lower(cursor, after) } else { None };
    let tried = tried.or_else(|| if mark { ends_lower(cursor, at) } else { None });
    let tried = tried.or_else(|| if prefix { ends_upper(cursor, after) } else { None });
    tried.or_else(|| if mark { ends_upper(cursor, at) } else { None })
}

/// `U*W+`: after the longest run of `U` that lets `W+` match.
#[inline]
fn ends_lower(cursor: &Cursor, at: usize) -> Option<usize> {
    let (mut end, mut after_both) = (at, None);
    loop {
        let (flags, len) = cursor.class(end);
        if flags & UPPERISH == 0 {
            break;
        }
        end += len;
        if flags & LOWERISH != 0 {
            after_both = Some(end);
        }
    }
    let lower = cursor.skip(end, LOWERISH);
    if lower > end { Some(lower) } else { after_both }
}

/// `U+W*`.
#[inline]
fn ends_upper(cursor: &Cursor, at: usize) -> Option<usize> {
    let end = cursor.skip(at, UPPERISH);
    (end > at).then(|| cursor.skip(end, LOWERISH))
}

/// `[\r\n/]*`
#[inline]
fn lines_and_slashes(cursor: &Cursor, mut at: usize) -> usize {
    while matches!(cursor.text.get(at), Some(b'\r' | b'\n' | b'/')) {
        at += 1;
    }
    at
}
