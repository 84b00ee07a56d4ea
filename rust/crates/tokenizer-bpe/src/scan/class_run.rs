//! Owns the simple stages: runs of one class, cut out of the text, with the rest left as it is.

use unicode_categories::UnicodeCategories;

use super::cursor::Cursor;
use crate::unicode::{SPACE, decode};

/// The characters that a stage cuts out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Class {
    /// Any of the flags of `unicode`.
    Flags(u16),
    /// Code points in any of the ranges, both ends included.
    Ranges(Box<[(u32, u32)]>),
    /// `char::is_numeric`, which the library's digit splitter asks.
    Numeric,
    /// What the library's punctuation splitter asks.
    Punctuation,
}

/// Runs of `least` to `most` characters of a class, each a piece, where asked with one white space before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassRun {
    pub(crate) class: Class,
    pub(crate) least: usize,
    pub(crate) most: usize,
    /// `\s?` before the run.
    pub(crate) space: bool,
}

impl ClassRun {
    pub(crate) fn new(class: Class, most: usize) -> Self {
        Self {
            class,
            least: 1,
            most,
            space: false,
        }
    }

    /// Call `emit` with the bounds of every piece, runs and what lies between.
    #[inline]
    pub(super) fn scan(&self, cursor: &Cursor, mut emit: impl FnMut(usize, usize)) {
        let (mut at, mut gap) = (0, 0);
        while at < cursor.text.len() {
            if let Some(end) = self.matched(cursor, at) {
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

    #[inline]
    fn matched(&self, cursor: &Cursor, at: usize) -> Option<usize> {
        if self.space {
            let (flags, len) = cursor.class(at);
            if flags & SPACE != 0
                && let Some(end) = self.run(cursor, at + len)
            {
                return Some(end);
            }
        }
        self.run(cursor, at)
    }

    #[inline]
    fn run(&self, cursor: &Cursor, mut at: usize) -> Option<usize> {
        for taken in 0..self.most {
            let len = self.class.len_at(cursor, at);
            if len == 0 {
                return (taken >= self.least).then_some(at);
            }
            at += len;
        }
        Some(at)
    }
}

impl Class {
    /// The length of the character at `at` where it is of the class, otherwise 0.
    #[inline]
    fn len_at(&self, cursor: &Cursor, at: usize) -> usize {
        let Some(&byte) = cursor.text.get(at) else {
            return 0;
        };
        let (inside, len) = match self {
            Self::Flags(mask) => {
                let (flags, len) = cursor.class(at);
                (flags & mask != 0, len)
            }
            Self::Ranges(ranges) => {
                let (code, len) = decode(cursor.text, at);
                (
                    ranges.iter().any(|&(low, high)| (low..=high).contains(&code)),
                    len,
                )
            }
            Self::Numeric if byte < 0x80 => (byte.is_ascii_digit(), 1),
            Self::Punctuation if byte < 0x80 => (byte.is_ascii_punctuation(), 1),
            Self::Numeric => char_at(cursor, at, char::is_numeric),
            Self::Punctuation => char_at(cursor, at, UnicodeCategories::is_punctuation),
        };
        if inside { len } else { 0 }
    }
}

fn char_at(cursor: &Cursor, at: usize, test: impl Fn(char) -> bool) -> (bool, usize) {
    let (code, len) = decode(cursor.text, at);
    (char::from_u32(code).is_some_and(test), len)
}
