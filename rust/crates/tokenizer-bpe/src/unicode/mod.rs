//! Owns the Unicode classes that pre-tokenizer patterns name, as one flag word a character. Knows no pattern.
//!
//! The classes are those of the regex engine of the `tokenizers` library (Oniguruma); `classes.txt` was written
//! from it by the ignored test `regenerate_classes`, and `classes_equal_the_library` compares every character.

use std::sync::LazyLock;

/// Upper or title case, modifier or other letters, and marks: `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
pub(crate) const UPPERISH: u16 = 1;
/// Lower case, modifier or other letters, and marks: `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
pub(crate) const LOWERISH: u16 = 1 << 1;
/// `\p{L}`.
pub(crate) const LETTER: u16 = 1 << 2;
/// `\p{M}`.
pub(crate) const MARK: u16 = 1 << 3;
/// `\p{N}`.
pub(crate) const NUMBER: u16 = 1 << 4;
/// `\p{P}`.
pub(crate) const PUNCTUATION: u16 = 1 << 5;
/// `\p{S}`.
pub(crate) const SYMBOL: u16 = 1 << 6;
/// `\s`.
pub(crate) const SPACE: u16 = 1 << 7;
/// `[\r\n]`.
pub(crate) const NEWLINE: u16 = 1 << 8;
/// `[A-Za-z]`.
pub(crate) const ASCII_LETTER: u16 = 1 << 9;
/// The 32 punctuation characters and symbols of ASCII.
pub(crate) const ASCII_PUNCTUATION: u16 = 1 << 10;

const BLOCK_BITS: usize = 7;
const BLOCK: usize = 1 << BLOCK_BITS;
const NUM_CODES: usize = 0x11_0000;
const TEXT: &str = include_str!("classes.txt");

/// The flags of every character: a direct table for ASCII, a two-stage table for the rest.
pub(crate) struct Classes {
    ascii: [u16; 128],
    block_of: Vec<u16>,
    blocks: Vec<u16>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::parse);

/// The shared table, built at first use.
pub(crate) fn classes() -> &'static Classes {
    &CLASSES
}

impl Classes {
    fn parse() -> Self {
        let runs: Vec<(usize, u16)> = TEXT
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (start, flags) = line.split_once(' ')?;
                Some((usize::from_str_radix(start, 16).ok()?, flags.parse().ok()?))
            })
            .collect();
        let mut flat = vec![0_u16; NUM_CODES];
        for (at, &(start, flags)) in runs.iter().enumerate() {
            let end = runs.get(at + 1).map_or(NUM_CODES, |next| next.0);
            flat[start..end].fill(flags);
        }
        let mut ascii = [0; 128];
        ascii.copy_from_slice(&flat[..128]);
        Self::compress(ascii, &flat)
    }

    fn compress(ascii: [u16; 128], flat: &[u16]) -> Self {
        let mut seen = std::collections::HashMap::<&[u16], u16>::new();
        let (mut block_of, mut blocks) = (Vec::with_capacity(flat.len() / BLOCK), Vec::new());
        for block in flat.chunks(BLOCK) {
            let next = (blocks.len() / BLOCK) as u16;
            block_of.push(*seen.entry(block).or_insert_with(|| {
                blocks.extend_from_slice(block);
                next
            }));
        }
        Self {
            ascii,
            block_of,
            blocks,
        }
    }

    /// The flags of a code point.
    #[inline]
    pub(crate) fn of_code(&self, code: u32) -> u16 {
        let code = code as usize;
        let block = self.block_of.get(code >> BLOCK_BITS).copied().unwrap_or(0);
        self.blocks[usize::from(block) * BLOCK + (code & (BLOCK - 1))]
    }

    /// The flags of a byte below 128.
    #[inline]
    pub(crate) fn of_ascii(&self, byte: u8) -> u16 {
        self.ascii[usize::from(byte & 0x7f)]
    }

    /// The flags and the length in bytes of the character that starts at `at`.
    #[inline]
    pub(crate) fn at(&self, text: &[u8], at: usize) -> (u16, usize) {
        let byte = text[at];
        if byte < 0x80 {
            return (self.of_ascii(byte), 1);
        }
        let (code, len) = decode(text, at);
        (self.of_code(code), len)
    }
}

/// The code point that starts at `at`, and its length. The bytes are those of a `str`, `at` a character boundary.
#[inline]
pub(crate) fn decode(text: &[u8], at: usize) -> (u32, usize) {
    let byte = |offset: usize| u32::from(text.get(at + offset).copied().unwrap_or(0));
    let first = byte(0);
    let tail = |offset: usize| byte(offset) & 0x3f;
    match first {
        0..0x80 => (first, 1),
        0x80..0xe0 => ((first & 0x1f) << 6 | tail(1), 2),
        0xe0..0xf0 => ((first & 0x0f) << 12 | tail(1) << 6 | tail(2), 3),
        _ => ((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4),
    }
}

#[cfg(test)]
mod tests;
