//! Owns Unicode normal forms with, for every byte of the result, the place in the text that it came from.
//!
//! The decompositions are those of the crate that the `tokenizers` library uses: a newer Unicode version would
//! give other ids for characters that came later.

use std::sync::LazyLock;

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

/// A normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// A text in a normal form.
pub(crate) struct Normalized {
    pub(crate) text: String,
    /// For each byte of `text` the bytes of the source that it came from; empty where not asked for.
    pub(crate) origin: Vec<(usize, usize)>,
}

/// One bit a code point of the first planes: the character takes no part in any composition or reordering.
type Inert = Vec<u64>;
const NUM_INERT: u32 = 0x3_0000;

static INERT: [LazyLock<Inert>; 4] = [
    LazyLock::new(|| inert(|code| is_nfc_quick(std::iter::once(code)))),
    LazyLock::new(|| inert(|code| is_nfd_quick(std::iter::once(code)))),
    LazyLock::new(|| inert(|code| is_nfkc_quick(std::iter::once(code)))),
    LazyLock::new(|| inert(|code| is_nfkd_quick(std::iter::once(code)))),
];

fn inert(check: impl Fn(char) -> IsNormalized) -> Inert {
    let mut bits = vec![0; NUM_INERT as usize / 64];
    for letter in (0..NUM_INERT).filter_map(char::from_u32) {
        if canonical_combining_class(letter) == 0 && matches!(check(letter), IsNormalized::Yes) {
            bits[letter as usize / 64] |= 1_u64 << (letter as usize % 64);
        }
    }
    bits
}

/// Whether `text` is certainly in the form already. ASCII is decided without a look at the tables.
pub(crate) fn is_normal(form: Form, text: &str) -> bool {
    if text.is_ascii() {
        return true;
    }
    let bits: &Inert = &INERT[form as usize];
    text.chars().all(|letter| {
        let word = bits.get(letter as usize / 64).copied().unwrap_or(0);
        letter.is_ascii() || word >> (letter as usize % 64) & 1 == 1
    })
}

/// Bring `text` into the form, with origins where asked.
pub(crate) fn normalize(form: Form, text: &str, with_origin: bool) -> Normalized {
    let mut collect = Collect::new(text, with_origin);
    match form {
        Form::Nfc => text.nfc().for_each(|step| collect.push(step)),
        Form::Nfd => text.nfd().for_each(|step| collect.push(step)),
        Form::Nfkc => text.nfkc().for_each(|step| collect.push(step)),
        Form::Nfkd => text.nfkd().for_each(|step| collect.push(step)),
    }
    collect.out
}

/// Follows the source while the result is made.
struct Collect<'a> {
    source: &'a str,
    /// How much of the source is accounted for.
    at: usize,
    /// The character before `at`.
    last: (usize, usize),
    with_origin: bool,
    out: Normalized,
}

impl<'a> Collect<'a> {
    fn new(source: &'a str, with_origin: bool) -> Self {
        let out = Normalized {
            text: String::with_capacity(source.len()),
            origin: Vec::new(),
        };
        Self {
            source,
            at: 0,
            last: (0, 0),
            with_origin,
            out,
        }
    }

    /// A character of the result: `change` is 1 where it was added, and minus the number of characters that go
    /// away behind it where it replaces one.
    fn push(&mut self, (letter, change): (char, isize)) {
        self.out.text.push(letter);
        if !self.with_origin {
            return;
        }
        let mut origin = self.last;
        if change <= 0 {
            origin = self.next();
            for _ in 0..change.unsigned_abs() {
                self.next();
            }
        }
        let origins = std::iter::repeat_n(origin, letter.len_utf8());
        self.out.origin.extend(origins);
    }

    fn next(&mut self) -> (usize, usize) {
        if let Some(letter) = self.source[self.at..].chars().next() {
            self.last = (self.at, self.at + letter.len_utf8());
            self.at = self.last.1;
        }
        self.last
    }
}
