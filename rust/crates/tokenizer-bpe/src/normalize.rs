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

/// Whether the character takes no part in any composition or reordering with what stands before it.
#[inline]
fn is_inert(bits: &Inert, letter: char) -> bool {
    let word = bits.get(letter as usize / 64).copied().unwrap_or(0);
    letter.is_ascii() || word >> (letter as usize % 64) & 1 == 1
}

/// Whether `text` is certainly in the form already. ASCII is decided without a look at the tables.
pub(crate) fn is_normal(form: Form, text: &str) -> bool {
    text.is_ascii() || {
        let bits: &Inert = &INERT[form as usize];
        text.chars().all(|letter| is_inert(bits, letter))
    }
}

/// Bring `text` into the form, with origins where asked.
///
/// Only the stretches around characters that take part in compositions are worked on; each starts at an inert
/// character, where nothing from before can reach across.
pub(crate) fn normalize(form: Form, text: &str, with_origin: bool) -> Normalized {
    let bits: &Inert = &INERT[form as usize];
    let mut out = Normalized {
        text: String::with_capacity(text.len()),
        origin: Vec::new(),
    };
    let (mut done, mut last_inert, mut active) = (0, 0, false);
    for (at, letter) in text.char_indices() {
        if !is_inert(bits, letter) {
            if !active {
                out.keep(text, done, last_inert, with_origin);
                (done, active) = (last_inert, true);
            }
        } else if active {
            out.work_on(form, text, done, at, with_origin);
            (done, last_inert, active) = (at, at, false);
        } else {
            last_inert = at;
        }
    }
    if active {
        out.work_on(form, text, done, text.len(), with_origin);
    } else {
        out.keep(text, done, text.len(), with_origin);
    }
    out
}

impl Normalized {
    /// The bytes `start..end` of the source as they are.
    fn keep(&mut self, source: &str, start: usize, end: usize, with_origin: bool) {
        self.text.push_str(&source[start..end]);
        if with_origin {
            for (at, letter) in source[start..end].char_indices() {
                let origin = (start + at, start + at + letter.len_utf8());
                self.origin.extend(std::iter::repeat_n(origin, letter.len_utf8()));
            }
        }
    }

    /// The bytes `start..end` of the source in the form.
    fn work_on(&mut self, form: Form, source: &str, start: usize, end: usize, with_origin: bool) {
        let text = &source[start..end];
        let mut collect = Collect::new(self, source, start, with_origin);
        match form {
            Form::Nfc => text.nfc().for_each(|step| collect.push(step)),
            Form::Nfd => text.nfd().for_each(|step| collect.push(step)),
            Form::Nfkc => text.nfkc().for_each(|step| collect.push(step)),
            Form::Nfkd => text.nfkd().for_each(|step| collect.push(step)),
        }
    }
}

/// Follows the source while the result is made.
struct Collect<'a> {
    source: &'a str,
    /// How much of the source is accounted for.
    at: usize,
    /// The character before `at`.
    last: (usize, usize),
    with_origin: bool,
    out: &'a mut Normalized,
}

impl<'a> Collect<'a> {
    fn new(out: &'a mut Normalized, source: &'a str, at: usize, with_origin: bool) -> Self {
        Self {
            source,
            at,
            last: (at, at),
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
