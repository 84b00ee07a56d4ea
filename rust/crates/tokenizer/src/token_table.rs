//! Owns the per-token byte table and the choice of how tokens join into text. Knows nothing of rows or steps.
//!
//! A decoder of the `tokenizers` library is a chain of stages over the list of tokens. Chains made of stages
//! that look at one token alone, followed by one way of joining, are turned into a table once; a step of
//! decoding is then a lookup. Chains of any other kind have no exact table, see [`Join::Window`].

use std::collections::HashMap;

use tokenizers::{Decoder, DecoderWrapper, Tokenizer};

use crate::text_tokenizer::{decoding_text, fence};

const KNOWN: u8 = 1;
const SPECIAL: u8 = 2;
const BYTE: u8 = 4;

/// How the pieces of a row's tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// Bytes of one stream; invalid sequences become U+FFFD as in `String::from_utf8_lossy`.
    ByteStream,
    /// Text, but for runs of byte tokens; a run that is not valid UTF-8 gives one U+FFFD a byte.
    ByteRuns,
    /// Text, each piece complete.
    Text,
    /// No table: the library decodes a window of recent tokens.
    Window,
}

/// Pieces of bytes by token id, in one allocation.
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    fn with_capacity(tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(tokens * 8),
            ends: Vec::with_capacity(tokens),
        }
    }

    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, id: usize) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..self.ends[id]]
    }
}

/// What each token stands for, and how tokens join.
pub(crate) struct TokenTable {
    flags: Vec<u8>,
    rest: Pieces,
    first: Option<Pieces>,
    join: Join,
    strip: Option<(char, usize)>,
}

impl TokenTable {
    pub(crate) fn build(inner: &Tokenizer, vocab_size: u32) -> Self {
        let plan = Plan::of(inner.get_decoder());
        let byte_of_char = byte_of_char();
        let mut table = Self {
            flags: Vec::with_capacity(vocab_size as usize),
            rest: Pieces::with_capacity(vocab_size as usize),
            first: plan
                .depends_on_position()
                .then(|| Pieces::with_capacity(vocab_size as usize)),
            join: plan.join,
            strip: plan.strip,
        };
        let specials = inner.get_added_vocabulary();
        for id in 0..vocab_size {
            let Some(token) = decoding_text(inner, id) else {
                table.push(0, b"", b"");
                continue;
            };
            let special = if specials.is_special_token(&token) {
                SPECIAL
            } else {
                0
            };
            let Some((first, rest)) = plan.pieces(&token) else {
                // A stage failed on this token alone; only the library's own decode can tell the text.
                table.join = Join::Window;
                table.push(KNOWN | special, b"", b"");
                continue;
            };
            match table.join {
                Join::ByteStream => {
                    table.push(
                        KNOWN | special,
                        &stream_bytes(&first, &byte_of_char),
                        &stream_bytes(&rest, &byte_of_char),
                    );
                }
                Join::ByteRuns if fallback_byte(&rest).is_some() => {
                    let byte = fallback_byte(&rest).map_or([0], |byte| [byte]);
                    table.push(KNOWN | special | BYTE, &byte, &byte);
                }
                _ => table.push(KNOWN | special, first.as_bytes(), rest.as_bytes()),
            }
        }
        table
    }

    fn push(&mut self, flags: u8, first: &[u8], rest: &[u8]) {
        self.flags.push(flags);
        self.rest.push(rest);
        if let Some(pieces) = &mut self.first {
            pieces.push(first);
        }
    }

    /// The token's bytes at the start of a text or inside one.
    pub(crate) fn piece(&self, id: u32, at_start: bool) -> &[u8] {
        match &self.first {
            Some(pieces) if at_start => pieces.get(id as usize),
            _ => self.rest.get(id as usize),
        }
    }

    pub(crate) fn is_known(&self, id: u32) -> bool {
        self.flags[id as usize] & KNOWN != 0
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags[id as usize] & SPECIAL != 0
    }

    pub(crate) fn is_byte(&self, id: u32) -> bool {
        self.flags[id as usize] & BYTE != 0
    }

    pub(crate) fn join(&self) -> Join {
        self.join
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.join != Join::Window
    }

    /// The character to take away at the start of the whole text, and how often.
    pub(crate) fn strip(&self) -> Option<(char, usize)> {
        self.strip
    }
}

/// The stages of a decoder, sorted into those of one token and the join.
struct Plan<'a> {
    per_token: Vec<&'a DecoderWrapper>,
    spaced: bool,
    join: Join,
    strip: Option<(char, usize)>,
}

impl<'a> Plan<'a> {
    fn of(decoder: Option<&'a DecoderWrapper>) -> Self {
        let mut plan = Self {
            per_token: Vec::new(),
            spaced: decoder.is_none(),
            join: Join::Text,
            strip: None,
        };
        let mut stages = Vec::new();
        if let Some(decoder) = decoder {
            flatten(decoder, &mut stages);
        }
        // Once tokens were merged, a later stage sees them as one: `merged` byte runs, or one fused text.
        let (mut merged, mut fused) = (false, false);
        for stage in stages {
            match stage {
                DecoderWrapper::Replace(_) | DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_)
                    if !merged && !fused =>
                {
                    plan.per_token.push(stage);
                }
                DecoderWrapper::Strip(strip) if fused && strip.stop == 0 && plan.strip.is_none() => {
                    plan.strip = (strip.start > 0).then_some((strip.content, strip.start));
                }
                DecoderWrapper::Strip(_) if !merged && !fused => plan.per_token.push(stage),
                DecoderWrapper::ByteFallback(_) if !merged && !fused => {
                    plan.join = Join::ByteRuns;
                    merged = true;
                }
                DecoderWrapper::ByteLevel(_) if !merged && !fused => {
                    plan.join = Join::ByteStream;
                    merged = true;
                    fused = true;
                }
                DecoderWrapper::Fuse(_) => fused = true,
                _ => {
                    plan.join = Join::Window;
                    break;
                }
            }
        }
        plan
    }

    fn depends_on_position(&self) -> bool {
        self.spaced
            || self
                .per_token
                .iter()
                .any(|stage| matches!(stage, DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_)))
    }

    /// The token's text at the start of a text and inside one, found by asking the library's own stages.
    fn pieces(&self, token: &str) -> Option<(String, String)> {
        if self.spaced {
            return Some((token.to_owned(), format!(" {token}")));
        }
        let mut first = vec![token.to_owned()];
        let mut pair = vec!["x".to_owned(), token.to_owned()];
        for stage in &self.per_token {
            first = fence(|| stage.decode_chain(first)).ok()?;
            if self.depends_on_position() {
                pair = fence(|| stage.decode_chain(pair)).ok()?;
            }
        }
        let first = first.pop()?;
        let rest = if self.depends_on_position() {
            pair.pop()?
        } else {
            first.clone()
        };
        Some((first, rest))
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, stages: &mut Vec<&'a DecoderWrapper>) {
    if let DecoderWrapper::Sequence(sequence) = decoder {
        for stage in sequence.get_decoders() {
            flatten(stage, stages);
        }
    } else {
        stages.push(decoder);
    }
}

/// The byte of a fallback token such as `<0x0A>`, read as loosely as the library reads it.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// A byte-level token's bytes; one with a character outside the byte alphabet stands for itself as a whole.
fn stream_bytes(token: &str, byte_of_char: &HashMap<char, u8>) -> Vec<u8> {
    token
        .chars()
        .map(|character| byte_of_char.get(&character).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others follow from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let mut next = 0x100_u32;
    (0..=u8::MAX)
        .filter_map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            char::from_u32(code).map(|character| (character, byte))
        })
        .collect()
}
