//! Owns the table of what each token stands for, in the form that a step of decoding copies. Knows nothing of rows.
//!
//! The table is made once, by asking the library's own decoder stages about each token of the vocabulary.

use std::collections::HashMap;

use tokenizers::Tokenizer;

use crate::decoder_chain::{DecoderChain, Join, Piece, Place};
use crate::text_tokenizer::decoding_text;

const KNOWN: u8 = 1;
const SPECIAL: u8 = 2;
/// A byte of a run, inside a text or as its first token.
const BYTE: u8 = 4;
const FIRST_BYTE: u8 = 8;
const DROPPED: u8 = 16;
/// The library's decode fails on the token.
const FAILS: u8 = 32;

// Flags in the top bits of a piece's length.
const BROKEN: u32 = 1 << 31;
const PLAIN: u32 = 1 << 30;
const LENGTH: u32 = PLAIN - 1;

/// Pieces by token id, in two allocations: those that are text, and those that are parts of characters.
#[derive(Default)]
struct Pieces {
    text: String,
    bytes: Vec<u8>,
    /// Start and length; [`BROKEN`] says that the piece lies in `bytes`, [`PLAIN`] that it needs only a copy.
    spans: Vec<(u32, u32)>,
}

impl Pieces {
    fn push(&mut self, piece: &[u8]) {
        let length = piece.len() as u32;
        if let Ok(text) = std::str::from_utf8(piece) {
            self.spans.push((self.text.len() as u32, length));
            self.text.push_str(text);
        } else {
            self.spans.push((self.bytes.len() as u32, length | BROKEN));
            self.bytes.extend_from_slice(piece);
        }
    }

    fn get(&self, id: usize) -> &[u8] {
        let (start, length) = self.spans[id];
        let (from, bytes) = (start as usize, (length & LENGTH) as usize);
        if length & BROKEN == 0 {
            &self.text.as_bytes()[from..from + bytes]
        } else {
            &self.bytes[from..from + bytes]
        }
    }

    fn text(&self, id: usize) -> Option<&str> {
        let &(start, length) = self.spans.get(id)?;
        if length & BROKEN == 0 {
            Some(&self.text[start as usize..start as usize + (length & LENGTH) as usize])
        } else {
            None
        }
    }
}

impl Pieces {
    /// The piece may be copied as it is; of no effect on a part of a character.
    fn mark_plain(&mut self, id: usize) {
        if let Some(span) = self.spans.get_mut(id).filter(|span| span.1 & BROKEN == 0) {
            span.1 |= PLAIN;
        }
    }

    fn plain_text(&self, id: usize) -> Option<&str> {
        let &(start, length) = self.spans.get(id)?;
        if length & PLAIN == 0 {
            return None;
        }
        Some(&self.text[start as usize..start as usize + (length & LENGTH) as usize])
    }
}

/// What each token stands for, and how tokens join.
pub(crate) struct TokenTable {
    chain: DecoderChain,
    flags: Vec<u8>,
    rest: Pieces,
    /// Pieces of the first token of a text, where they differ.
    first: Option<Pieces>,
    /// Pieces of the last token of a text, where they differ; of the only one, where both ends differ.
    last: Option<Pieces>,
    only: Option<Pieces>,
    /// Tokens with the same number are repeats of each other.
    repeat_keys: Option<Vec<u32>>,
    any_fails: bool,
}

impl TokenTable {
    pub(crate) fn build(inner: &Tokenizer, vocab_size: u32) -> Self {
        let chain = DecoderChain::of(inner.get_decoder());
        let (starts, ends) = (chain.starts_differ(), chain.ends_differ());
        let mut table = Self {
            flags: Vec::with_capacity(vocab_size as usize),
            rest: Pieces::default(),
            first: starts.then(Pieces::default),
            last: ends.then(Pieces::default),
            only: (starts && ends).then(Pieces::default),
            repeat_keys: chain.drops_repeats().then(Vec::new),
            any_fails: false,
            chain,
        };
        let byte_of_char = byte_of_char();
        let mut keys: HashMap<String, u32> = HashMap::new();
        for id in 0..vocab_size {
            let token = decoding_text(inner, id);
            table.push_token(token.as_deref(), &byte_of_char);
            if let Some(list) = &mut table.repeat_keys {
                let key = token.as_deref().and_then(|token| table.chain.repeat_key(token));
                let next = keys.len() as u32;
                list.push(*keys.entry(key.unwrap_or_default()).or_insert(next));
            }
            if token.is_some_and(|token| inner.get_added_vocabulary().is_special_token(&token)) {
                table.flags[id as usize] |= SPECIAL;
            }
            if table.flags[id as usize] == KNOWN && table.copies_text() {
                table.rest.mark_plain(id as usize);
            }
        }
        table
    }

    fn push_token(&mut self, token: Option<&str>, byte_of_char: &HashMap<char, u8>) {
        let mut flags = 0;
        let mut piece_at = |flags_of: [u8; 3], first: bool, last: bool| -> Vec<u8> {
            let Some(token) = token else { return Vec::new() };
            flags |= KNOWN;
            match self.chain.piece(token, Place { first, last }) {
                Some(Piece::Text(text)) if self.chain.join() == Join::ByteStream => {
                    stream_bytes(&text, byte_of_char)
                }
                Some(Piece::Text(text)) => text.into_bytes(),
                Some(Piece::Byte(byte)) => {
                    flags |= flags_of[0];
                    vec![byte]
                }
                Some(Piece::Dropped) => {
                    flags |= flags_of[1];
                    Vec::new()
                }
                None => {
                    flags |= flags_of[2];
                    Vec::new()
                }
            }
        };
        if self.chain.join() == Join::Whole {
            // The library decodes; only flags are needed.
            flags = if token.is_some() { KNOWN } else { 0 };
            self.flags.push(flags);
            return;
        }
        let inside = [BYTE, DROPPED, FAILS];
        let at_start = if self.first.is_some() {
            [FIRST_BYTE, DROPPED, FAILS]
        } else {
            [0, 0, 0]
        };
        self.rest.push(&piece_at(inside, false, false));
        for (pieces, first, last) in [
            (&mut self.first, true, false),
            (&mut self.last, false, true),
            (&mut self.only, true, true),
        ] {
            if let Some(pieces) = pieces {
                pieces.push(&piece_at(if first { at_start } else { inside }, first, last));
            }
        }
        if self.first.is_none() && flags & BYTE != 0 {
            flags |= FIRST_BYTE;
        }
        self.any_fails |= flags & FAILS != 0;
        self.flags.push(flags);
    }

    fn pieces(&self, at_start: bool) -> &Pieces {
        match &self.first {
            Some(pieces) if at_start => pieces,
            _ => &self.rest,
        }
    }

    /// The token's bytes at the start of a text or inside one, other tokens following.
    pub(crate) fn piece(&self, id: u32, at_start: bool) -> &[u8] {
        self.pieces(at_start).get(id as usize)
    }

    /// [`Self::piece`], where it is valid text.
    pub(crate) fn text(&self, id: u32, at_start: bool) -> Option<&str> {
        self.pieces(at_start).text(id as usize)
    }

    /// The token's text, if a row inside a text needs nothing but a copy of it.
    pub(crate) fn plain_text(&self, id: u32) -> Option<&str> {
        self.rest.plain_text(id as usize)
    }

    /// The token's text where no token follows, if that can differ.
    pub(crate) fn last_text(&self, id: u32, at_start: bool) -> Option<&str> {
        match &self.only {
            Some(pieces) if at_start => pieces.text(id as usize),
            _ => self.last.as_ref()?.text(id as usize),
        }
    }

    pub(crate) fn is_known(&self, id: u32) -> bool {
        self.flags[id as usize] & KNOWN != 0
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags[id as usize] & SPECIAL != 0
    }

    pub(crate) fn is_byte(&self, id: u32, at_start: bool) -> bool {
        self.flags[id as usize] & if at_start { FIRST_BYTE } else { BYTE } != 0
    }

    /// The token is as if it had not come.
    pub(crate) fn is_dropped(&self, id: u32) -> bool {
        self.flags[id as usize] & (DROPPED | KNOWN) != KNOWN
    }

    /// The library cannot decode a text with this token.
    pub(crate) fn fails(&self, id: u32) -> bool {
        self.any_fails && self.flags[id as usize] & FAILS != 0
    }

    pub(crate) fn any_fails(&self) -> bool {
        self.any_fails
    }

    /// What repeats of a token are told by, where the decoder drops them.
    pub(crate) fn repeat_key(&self, id: u32) -> Option<u32> {
        self.repeat_keys.as_ref().map(|keys| keys[id as usize])
    }

    pub(crate) fn chain(&self) -> &DecoderChain {
        &self.chain
    }

    pub(crate) fn join(&self) -> Join {
        self.chain.join()
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.join() != Join::Whole
    }

    /// A token that is no byte and is valid text gives [`Self::text`], whatever follows it.
    pub(crate) fn copies_text(&self) -> bool {
        self.last.is_none() && self.repeat_keys.is_none() && self.is_exact()
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
