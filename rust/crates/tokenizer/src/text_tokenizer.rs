//! Owns the loaded tokenizer: encode, whole-text decode, and lookups by id. Knows nothing of rows or steps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use serde_json::json;
use tokenizers::{AddedToken, Model, PostProcessorWrapper, Tokenizer};

use crate::encode_path::{EncodePath, IdsWithOffsets};
use crate::error::{Error, Result};
use crate::plain_text::plain_copy;
use crate::token_table::TokenTable;

/// No vocabulary comes near it.
const MAX_TOKEN_ID: u32 = 1 << 26;

/// A token that configuration files add to, or mark as special in, the vocabulary.
// The flags are those of the file format, independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedTokenSpec {
    /// The text that stands for the token.
    pub content: String,
    /// The id that the file states, where it states one.
    pub id: Option<u32>,
    /// Match whole words only.
    pub single_word: bool,
    /// Swallow white space before it.
    pub lstrip: bool,
    /// Swallow white space after it.
    pub rstrip: bool,
    /// Match in the normalized text.
    pub normalized: bool,
    /// Left out by a decode that skips special tokens.
    pub special: bool,
}

/// A tokenizer that is ready to encode and decode. Shared between threads behind an `Arc`.
pub struct TextTokenizer {
    inner: Tokenizer,
    path: EncodePath,
    /// Made at first use by [`Self::encode_plain`].
    plain: OnceLock<(Tokenizer, EncodePath)>,
    vocab_size: u32,
    table: OnceLock<TokenTable>,
}

impl TextTokenizer {
    /// Load the text of a `tokenizer.json`; truncation and padding settings are dropped, as
    /// transformers does.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let mut inner = fence(|| Tokenizer::from_bytes(json))
            .map_err(|reason| Error::File(format!("not a usable tokenizer.json: {reason}")))?;
        inner
            .with_truncation(None)
            .map_err(|reason| Error::File(reason.to_string()))?;
        inner.with_padding(None);
        // Tables are as long as the highest id.
        match inner
            .get_vocab(true)
            .into_iter()
            .find(|&(_, id)| id >= MAX_TOKEN_ID)
        {
            Some((token, id)) => Err(Error::File(format!(
                "the token {token:?} has the id {id}, which is too high"
            ))),
            None => Ok(Self::new(inner)),
        }
    }

    fn new(inner: Tokenizer) -> Self {
        let vocab = inner.get_vocab(true);
        let vocab_size = vocab.values().max().map_or(0, |&id| id + 1);
        Self {
            inner,
            path: EncodePath::default(),
            plain: OnceLock::new(),
            vocab_size,
            table: OnceLock::new(),
        }
    }

    /// Add tokens, or mark present ones as special. A stated id that the vocabulary does not give is an error.
    pub fn add_tokens(mut self, specs: &[AddedTokenSpec]) -> Result<Self> {
        for spec in specs {
            let added = self.inner.get_added_vocabulary();
            let present = added.get_vocab().contains_key(&spec.content);
            if present && (!spec.special || added.is_special_token(&spec.content)) {
                continue;
            }
            let token = AddedToken::from(spec.content.clone(), spec.special)
                .single_word(spec.single_word)
                .lstrip(spec.lstrip)
                .rstrip(spec.rstrip)
                .normalized(spec.normalized);
            let added = if spec.special {
                self.inner.add_special_tokens([token])
            } else {
                self.inner.add_tokens([token])
            };
            added.map_err(|reason| {
                Error::File(format!("cannot add the token {:?}: {reason}", spec.content))
            })?;
            let found = self.inner.token_to_id(&spec.content);
            if spec.id.is_some() && found != spec.id {
                return Err(Error::File(format!(
                    "the token {:?} should have the id {}, but the vocabulary gives it {found:?}",
                    spec.content,
                    spec.id.unwrap_or_default(),
                )));
            }
        }
        Ok(Self::new(self.inner))
    }

    /// Replace what is put around an encoded text: a first token, a last token, both or none.
    pub fn with_ends(mut self, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let processor = template_processing(&self.inner, bos, eos)?;
        self.inner.with_post_processor(Some(processor));
        Ok(Self::new(self.inner))
    }

    /// The ids of `text`. The first call of any of these methods prepares the fast path.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        self.path.encode(&self.inner, text, add_special_tokens)
    }

    /// The ids of `text`, and for each the range of characters that it stands for.
    pub fn encode_with_offsets(&self, text: &str, add_special_tokens: bool) -> Result<IdsWithOffsets> {
        self.path
            .encode_with_offsets(&self.inner, text, add_special_tokens)
    }

    /// The ids of each text, worked out in parallel.
    pub fn encode_batch(&self, texts: Vec<String>, add_special_tokens: bool) -> Result<Vec<Vec<u32>>> {
        self.path.encode_batch(&self.inner, texts, add_special_tokens)
    }

    /// Why texts are encoded by the library, or `None` where the fast byte-level path encodes them.
    pub fn library_reason(&self) -> Option<&str> {
        self.path.reason(&self.inner)
    }

    /// As [`Self::encode`], but text that spells a special token is encoded as any other text.
    ///
    /// The first call makes a copy of the tokenizer.
    pub fn encode_plain(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let (plain, path) = self.plain()?;
        path.encode(plain, text, add_special_tokens)
    }

    /// [`Self::encode_plain`] of each text, worked out in parallel.
    pub fn encode_batch_plain(&self, texts: Vec<String>, add_special_tokens: bool) -> Result<Vec<Vec<u32>>> {
        let (plain, path) = self.plain()?;
        path.encode_batch(plain, texts, add_special_tokens)
    }

    fn plain(&self) -> Result<&(Tokenizer, EncodePath)> {
        if let Some(plain) = self.plain.get() {
            return Ok(plain);
        }
        let copy = (plain_copy(&self.inner)?, EncodePath::default());
        Ok(self.plain.get_or_init(|| copy))
    }

    /// The text of `ids` as a whole. Ids beyond the vocabulary are refused.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.check_ids("ids", ids)?;
        self.decode_unchecked(ids, skip_special_tokens)
    }

    pub(crate) fn decode_unchecked(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        fence(|| self.inner.decode(ids, skip_special_tokens)).map_err(Error::Library)
    }

    /// Highest id + 1, added tokens included.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id of a token's exact spelling.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The ids that a decode which skips special tokens leaves out, ascending.
    pub fn special_ids(&self) -> Vec<u32> {
        (0..self.vocab_size)
            .filter(|&id| self.table().is_special(id))
            .collect()
    }

    /// The bytes that the token stands for inside a text.
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>> {
        self.check_ids("id", &[id])?;
        let table = self.table();
        if table.is_exact() {
            return Ok(table.piece(id, false).to_vec());
        }
        Ok(self.decode_unchecked(&[id], false)?.into_bytes())
    }

    /// The per-token byte table, built at first use.
    pub(crate) fn table(&self) -> &TokenTable {
        self.table
            .get_or_init(|| TokenTable::build(&self.inner, self.vocab_size))
    }

    pub(crate) fn check_ids(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        match ids.iter().position(|&id| id >= self.vocab_size) {
            None => Ok(()),
            Some(at) => Err(Error::invalid(
                field,
                format!(
                    "the token id {} at position {at} is outside the vocabulary of {} tokens",
                    ids[at], self.vocab_size
                ),
            )),
        }
    }
}

/// The token's text in the form that decoding starts from.
pub(crate) fn decoding_text(inner: &Tokenizer, id: u32) -> Option<String> {
    inner
        .get_added_vocabulary()
        .simple_id_to_token(id)
        .or_else(|| inner.get_model().id_to_token(id))
}

/// Run a library call; its errors and panics both become a message.
pub(crate) fn fence<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(reason)) => Err(reason.to_string()),
        Err(panic) => Err(panic_text(&*panic)),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
        .to_owned()
}

fn template_processing(
    inner: &Tokenizer,
    bos: Option<&str>,
    eos: Option<&str>,
) -> Result<PostProcessorWrapper> {
    let mut specials = serde_json::Map::new();
    let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    let mut pair_end = vec![json!({"Sequence": {"id": "B", "type_id": 1}})];
    for (token, first) in [(bos, true), (eos, false)] {
        let Some(token) = token else { continue };
        let id = inner
            .token_to_id(token)
            .ok_or_else(|| Error::File(format!("the token {token:?} is not in the vocabulary")))?;
        specials.insert(
            token.to_owned(),
            json!({"id": token, "ids": [id], "tokens": [token]}),
        );
        for (sequence, type_id) in [(&mut single, 0), (&mut pair_end, 1)] {
            let at = if first { 0 } else { sequence.len() };
            sequence.insert(at, json!({"SpecialToken": {"id": token, "type_id": type_id}}));
        }
    }
    let pair: Vec<_> = single.iter().chain(&pair_end).cloned().collect();
    serde_json::from_value(json!({
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials,
    }))
    .map_err(|reason| Error::File(reason.to_string()))
}
