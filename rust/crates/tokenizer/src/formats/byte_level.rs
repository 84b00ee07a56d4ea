//! Owns the `tokenizer.json` of a byte-level BPE that is given by ranks. Knows nothing of files.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::json_pieces;
use super::rank_merges::{self, MAX_TOKEN_BYTES};
use crate::error::{Error, Result};

/// A token outside the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedToken {
    /// Its text.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// Left out by a decode that skips special tokens.
    pub special: bool,
}

/// A vocabulary of ranks with what such files leave unsaid.
pub(super) struct RankedVocabulary<'a> {
    /// Rank by bytes; the id is the rank plus `id_offset`.
    pub(super) ranks: HashMap<&'a [u8], u32>,
    pub(super) id_offset: u32,
    /// The regular expression that cuts text before the merges.
    pub(super) pattern: &'a str,
    pub(super) tokens: &'a [NamedToken],
    /// Text is brought into the form NFC first.
    pub(super) nfc: bool,
    /// The token that goes before a text.
    pub(super) bos: Option<&'a str>,
}

impl RankedVocabulary<'_> {
    /// The `tokenizer.json` with the same ids.
    pub(super) fn tokenizer_json(&self) -> Result<Value> {
        self.check_ranks()?;
        let named = self.checked_tokens()?;
        let alphabet = alphabet();
        let spell =
            |bytes: &[u8]| -> String { bytes.iter().map(|&byte| alphabet[usize::from(byte)]).collect() };
        let mut vocab: Map<String, Value> = self
            .ranks
            .iter()
            .map(|(token, rank)| (spell(token), json!(rank + self.id_offset)))
            .collect();
        // The library numbers added tokens from the end of the vocabulary on; others must be in the vocabulary.
        let follows = (self.ranks.len() as u32..)
            .zip(&named)
            .all(|(id, token)| token.id == id);
        if !follows {
            vocab.extend(named.iter().map(|token| (token.content.clone(), json!(token.id))));
        }
        let merges: Vec<[String; 2]> = rank_merges::merges(&self.ranks)
            .into_iter()
            .map(|(left, right)| [spell(left), spell(right)])
            .collect();
        let bos = self
            .bos
            .and_then(|bos| named.iter().find(|token| token.content == bos))
            .map(|token| (token.content.as_str(), token.id));
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": named.iter()
                .map(|token| json_pieces::added_token(token.id, &token.content, token.special))
                .collect::<Vec<_>>(),
            "normalizer": if self.nfc { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [json_pieces::split(self.pattern), json_pieces::byte_level(false)],
            },
            "post_processor": json_pieces::ends(bos, None),
            "decoder": json_pieces::byte_level(false),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                // A piece of text that is a token is that token, whatever its merges make of it.
                "ignore_merges": true, "vocab": vocab, "merges": merges,
            },
        }))
    }

    fn check_ranks(&self) -> Result<()> {
        let missing = (0..=u8::MAX).find(|&byte| !self.ranks.contains_key(&[byte][..]));
        if let Some(byte) = missing {
            return Err(Error::File(format!("no token stands for the byte {byte:#04x}")));
        }
        if let Some(token) = self.ranks.keys().find(|token| token.len() > MAX_TOKEN_BYTES) {
            return Err(Error::File(format!(
                "a token has {} bytes; up to {MAX_TOKEN_BYTES} are supported",
                token.len()
            )));
        }
        let mut seen = HashSet::new();
        let limit = id_limit(self.ranks.len() + self.id_offset as usize);
        for &rank in self.ranks.values() {
            if rank >= limit {
                return Err(Error::File(format!(
                    "the rank {rank} is far beyond the {} tokens",
                    self.ranks.len()
                )));
            }
            if !seen.insert(rank) {
                return Err(Error::File(format!("two tokens have the rank {rank}")));
            }
        }
        Ok(())
    }

    /// The named tokens by ascending id, none of which has an id or a text of another.
    fn checked_tokens(&self) -> Result<Vec<&NamedToken>> {
        let mut ids: HashSet<u32> = self.ranks.values().map(|rank| rank + self.id_offset).collect();
        let mut texts = HashSet::new();
        let limit = id_limit(self.ranks.len() + self.id_offset as usize + self.tokens.len());
        for token in self.tokens {
            let problem = if token.content.is_empty() {
                "is empty"
            } else if token.id >= limit {
                "is far beyond the vocabulary"
            } else if !ids.insert(token.id) {
                "is that of another token"
            } else if !texts.insert(token.content.as_str()) {
                "repeats a text"
            } else {
                continue;
            };
            return Err(Error::File(format!(
                "the special token {:?} with the id {} {problem}",
                token.content, token.id
            )));
        }
        let mut named: Vec<&NamedToken> = self.tokens.iter().collect();
        named.sort_unstable_by_key(|token| token.id);
        Ok(named)
    }
}

/// Tables are as long as the highest id, so ids may have gaps, but not any size.
fn id_limit(tokens: usize) -> u32 {
    (tokens * 4 + (1 << 16)).min(1 << 26) as u32
}

/// GPT-2's spelling of bytes: printable Latin-1 bytes stand for themselves, the others follow from U+0100 on.
fn alphabet() -> Vec<char> {
    let mut next = 0x100_u32;
    (0..=u8::MAX)
        .map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect()
}
