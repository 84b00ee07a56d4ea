//! Owns the patterns of the cl100k family: Llama 3, Qwen 2 to 3.6, GLM 4, cl100k itself.
//!
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//! with one number a piece in Qwen, and with marks as letters from Qwen 3.5 on.

use super::cursor::Cursor;
use crate::unicode::{LETTER, MARK, NEWLINE, NUMBER, SPACE};

/// What the patterns of the family differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cl100k {
    /// The most numbers in a piece.
    pub(crate) numbers: usize,
    /// Whether marks count as letters.
    pub(crate) marks: bool,
    /// Whether newlines belong to the signs before them.
    pub(crate) lines: bool,
    /// Whether white space at the end of the text is one piece, newlines or not (`\s++$`).
    pub(crate) whole_tail: bool,
}

impl Cl100k {
    /// The end of the piece that starts at `at`. Every text is covered without gaps.
    #[inline]
    pub(super) fn next(self, cursor: &Cursor, at: usize) -> usize {
        let word = if self.marks { LETTER | MARK } else { LETTER };
        if let Some(end) = cursor.contraction_any_case(at) {
            return end;
        }
        let (flags, len) = cursor.class(at);
        if flags & word != 0 {
            return cursor.skip(at + len, word);
        }
        if flags & NUMBER != 0 {
            return cursor.skip_most(at + len, NUMBER, self.numbers - 1);
        }
        let (next, next_len) = cursor.class(at + len);
        if flags & NEWLINE == 0 && next & word != 0 {
            return cursor.skip(at + len + next_len, word);
        }
        let apart = SPACE | word | NUMBER;
        if flags & SPACE == 0 || (cursor.text[at] == b' ' && next_len > 0 && next & apart == 0) {
            let end = cursor.skip_not(at + len, apart);
            return if self.lines {
                cursor.skip(end, NEWLINE)
            } else {
                end
            };
        }
        if self.whole_tail && cursor.skip(at, SPACE) == cursor.text.len() {
            return cursor.text.len();
        }
        cursor.white_space_or_lines(at)
    }
}
