//! Owns walking over the characters of a text by their classes. Knows no pattern.

use crate::unicode::{Classes, NEWLINE, SPACE, classes};

/// The bytes of a valid UTF-8 text with the class table next to them. Positions are character boundaries.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    pub(crate) text: &'a [u8],
    classes: &'static Classes,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text: text.as_bytes(),
            classes: classes(),
        }
    }

    /// The flags and length of the character at `at`; `(0, 0)` at the end.
    #[inline]
    pub(crate) fn class(&self, at: usize) -> (u16, usize) {
        if at < self.text.len() {
            self.classes.at(self.text, at)
        } else {
            (0, 0)
        }
    }

    /// The first position from `at` on whose character has none of the flags of `mask`.
    #[inline]
    pub(crate) fn skip(&self, mut at: usize, mask: u16) -> usize {
        while let Some(&byte) = self.text.get(at) {
            let (flags, len) = if byte < 0x80 {
                (self.classes.of_ascii(byte), 1)
            } else {
                self.classes.at(self.text, at)
            };
            if flags & mask == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// The first position from `at` on whose character has one of the flags of `mask`.
    #[inline]
    pub(crate) fn skip_not(&self, mut at: usize, mask: u16) -> usize {
        while let Some(&byte) = self.text.get(at) {
            let (flags, len) = if byte < 0x80 {
                (self.classes.of_ascii(byte), 1)
            } else {
                self.classes.at(self.text, at)
            };
            if flags & mask != 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// As `skip`, over at most `most` characters.
    #[inline]
    pub(crate) fn skip_most(&self, mut at: usize, mask: u16, most: usize) -> usize {
        for _ in 0..most {
            let (flags, len) = self.class(at);
            if flags & mask == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// The end of `\s+(?!\S)|\s+` at `at`, where white space starts and has no newline rule of its own.
    #[inline]
    pub(crate) fn white_space(&self, at: usize) -> usize {
        let end = self.skip(at, SPACE);
        if end == self.text.len() {
            return end;
        }
        self.before_last(at, end)
    }

    /// The end of `\s*[\r\n]+|\s+(?!\S)|\s+` at `at`, where white space starts.
    #[inline]
    pub(crate) fn white_space_or_lines(&self, at: usize) -> usize {
        let (mut end, mut after_newline) = (at, at);
        loop {
            let (flags, len) = self.class(end);
            if flags & SPACE == 0 {
                break;
            }
            end += len;
            if flags & NEWLINE != 0 {
                after_newline = end;
            }
        }
        if after_newline > at {
            return after_newline;
        }
        if end == self.text.len() {
            return end;
        }
        self.before_last(at, end)
    }

    /// The run `at..end` of white space without its last character, or all of it where it is one character.
    fn before_last(&self, at: usize, end: usize) -> usize {
        let mut last = end - 1;
        while last > at && self.text[last] & 0xc0 == 0x80 {
            last -= 1;
        }
        if last > at { last } else { end }
    }

    /// The end of an English contraction at `at` (`'s 't 're 've 'm 'll 'd`), in lower case only.
    #[inline]
    pub(crate) fn contraction(&self, at: usize) -> Option<usize> {
        if self.text.get(at) != Some(&b'\'') {
            return None;
        }
        match (self.text.get(at + 1)?, self.text.get(at + 2)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
            _ => None,
        }
    }

    /// The end of an English contraction at `at` in any case. The long s (U+017F) folds to `s`.
    #[inline]
    pub(crate) fn contraction_any_case(&self, at: usize) -> Option<usize> {
        if self.text.get(at) != Some(&b'\'') {
            return None;
        }
        let next = *self.text.get(at + 1)?;
        let after = self.text.get(at + 2);
        match (next | 0x20, after.map(|byte| byte | 0x20)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
            _ if next == 0xc5 && after == Some(&0xbf) => Some(at + 3),
            _ => None,
        }
    }
}
