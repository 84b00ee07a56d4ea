//! Owns leading byte ranges of a segment back to characters of the text.

/// The character that each byte of a text belongs to.
pub(crate) enum CharIndex {
    /// Bytes are characters.
    Ascii,
    /// By byte.
    Bytes(Vec<u32>),
}

impl CharIndex {
    pub(crate) fn new(text: &str) -> Self {
        if text.is_ascii() {
            return Self::Ascii;
        }
        let mut count = 0_u32;
        let bytes = text.bytes().map(|byte| {
            count += u32::from(byte & 0xc0 != 0x80);
            count - 1
        });
        Self::Bytes(bytes.collect())
    }

    /// The characters that the bytes `start..end` touch.
    pub(crate) fn chars(&self, start: usize, end: usize) -> (usize, usize) {
        let Self::Bytes(bytes) = self else {
            return (start, end);
        };
        let of = |byte: usize| bytes.get(byte).map_or(0, |&at| at as usize);
        if end > start {
            (of(start), of(end - 1) + 1)
        } else {
            (of(start), of(start))
        }
    }
}

/// Where a segment lies in the text.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The byte of the text that the segment, or the source of its origins, starts at.
    pub(crate) base: usize,
    /// For each byte of the segment the bytes it came from, counted from `base`; none where they are the same.
    pub(crate) origin: Option<&'a [(usize, usize)]>,
}

impl Place<'_> {
    /// The bytes of the text behind the bytes `start..end` of the segment.
    pub(crate) fn bytes(self, start: usize, end: usize) -> (usize, usize) {
        match self.origin {
            None => (self.base + start, self.base + end),
            Some(origin) => (self.base + origin[start].0, self.base + origin[end - 1].1),
        }
    }

    /// The place of the part of the segment that starts at `start`.
    pub(crate) fn part(self, start: usize) -> Self {
        match self.origin {
            None => Self {
                base: self.base + start,
                origin: None,
            },
            Some(origin) => Self {
                base: self.base,
                origin: Some(&origin[start..]),
            },
        }
    }

    /// The origins of the part's `text` with a space put before it, which comes from the first character.
    pub(crate) fn with_space(self, text: &str) -> Vec<(usize, usize)> {
        let own = |at: usize| match self.origin {
            Some(origin) => origin[at],
            None => char_around(text, at),
        };
        std::iter::once(own(0)).chain((0..text.len()).map(own)).collect()
    }
}

/// The bounds of the character that the byte `at` is part of.
fn char_around(text: &str, at: usize) -> (usize, usize) {
    let start = (0..=at).rev().find(|&start| text.is_char_boundary(start));
    let end = (at + 1..=text.len()).find(|&end| text.is_char_boundary(end));
    (start.unwrap_or(at), end.unwrap_or(at + 1))
}
