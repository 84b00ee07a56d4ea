//! Rebuilds a tokenizer from GGUF metadata. Knows the `tokenizer.*` keys and nothing of the file format.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value as Json;

use super::byte_level;
use super::keys::{Keys, check_length};
use super::metadata::{Metadata, Value, read_metadata};
use super::{sentence_piece, word_piece};
use crate::error::{Error, Result};
use crate::formats::json_pieces;
use crate::formats::piece_kinds::{CONTROL, NORMAL, UNKNOWN, USER_DEFINED};
use crate::text_tokenizer::TextTokenizer;

/// A tokenizer out of a GGUF file, with what the file says around it.
pub struct GgufTokenizer {
    /// Encodes and decodes.
    pub tokenizer: TextTokenizer,
    /// Ids by role: `bos`, `eos`, `pad`, `unk`, `eot`, `eom`, `sep`, `cls`, `mask`.
    pub roles: Vec<(&'static str, u32)>,
    /// Whether encoding puts the first token before a text.
    pub add_bos_token: bool,
    /// Whether encoding puts the end token behind a text.
    pub add_eos_token: bool,
    /// Chat templates by name; the unnamed one is `default`.
    pub chat_templates: Vec<(String, String)>,
}

const ROLE_KEYS: [(&str, &str); 9] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("pad", "padding_token_id"),
    ("unk", "unknown_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("sep", "seperator_token_id"),
    ("cls", "cls_token_id"),
    ("mask", "mask_token_id"),
];

/// Load the tokenizer of the GGUF file at `path`.
pub fn load(path: &Path) -> Result<GgufTokenizer> {
    let metadata = read_metadata(path)?;
    build(&metadata).map_err(|error| match error {
        Error::File(reason) => Error::File(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// What a kind of vocabulary amounts to.
pub(super) struct Plan {
    /// The `tokenizer.json`, without what goes around a text.
    pub(super) json: Json,
    /// Whether a file that does not say so puts the first token before a text.
    pub(super) adds_bos: bool,
    /// Whether a file that does not say so puts the last token behind a text.
    pub(super) adds_eos: bool,
    /// The role of the first token.
    pub(super) first_role: &'static str,
    /// The role of the last token.
    pub(super) last_role: &'static str,
}

impl Plan {
    pub(super) fn new(json: Json, adds_bos: bool) -> Self {
        Self {
            json,
            adds_bos,
            adds_eos: false,
            first_role: "bos",
            last_role: "eos",
        }
    }
}

fn build(metadata: &Metadata) -> Result<GgufTokenizer> {
    let keys = Keys(metadata);
    let model = keys.text("tokenizer.ggml.model")?.ok_or_else(|| {
        Error::File("the GGUF file holds no tokenizer (no tokenizer.ggml.model)".to_owned())
    })?;
    let vocabulary = Vocabulary::read(&keys)?;
    let plan = match model {
        "gpt2" => byte_level::plan(&keys, &vocabulary)?,
        "llama" => sentence_piece::scored_bpe(&keys, &vocabulary)?,
        "t5" => sentence_piece::unigram(&keys, &vocabulary)?,
        "gemma4" => sentence_piece::listed_bpe(&keys, &vocabulary)?,
        "bert" => word_piece::plan(&keys, &vocabulary)?,
        other => {
            return Err(Error::File(format!(
                "the tokenizer model {other:?} (tokenizer.ggml.model) is not supported; \
                 gpt2, llama, t5, gemma4 and bert are"
            )));
        }
    };
    let roles = roles(&keys, vocabulary.tokens.len())?;
    let at_start = keys
        .flag("tokenizer.ggml.add_bos_token")?
        .unwrap_or(plan.adds_bos);
    let at_end = keys
        .flag("tokenizer.ggml.add_eos_token")?
        .unwrap_or(plan.adds_eos);
    let text_of = |role: &str| -> Option<&str> {
        let (_, id) = roles.iter().find(|(name, _)| *name == role)?;
        vocabulary.tokens.get(*id as usize).copied()
    };
    let bos = text_of(plan.first_role).filter(|_| at_start);
    let eos = text_of(plan.last_role).filter(|_| at_end);
    let mut tokenizer = TextTokenizer::from_json(plan.json.to_string().as_bytes())?;
    if bos.is_some() || eos.is_some() {
        tokenizer = tokenizer.with_ends(bos, eos)?;
    }
    Ok(GgufTokenizer {
        tokenizer,
        add_bos_token: bos.is_some(),
        add_eos_token: eos.is_some(),
        roles,
        chat_templates: chat_templates(&keys)?,
    })
}

pub(super) struct Vocabulary<'a> {
    pub(super) tokens: Vec<&'a str>,
    pub(super) kinds: Vec<i128>,
}

impl<'a> Vocabulary<'a> {
    fn read(keys: &Keys<'a>) -> Result<Self> {
        let tokens = keys
            .texts("tokenizer.ggml.tokens")?
            .filter(|tokens| !tokens.is_empty())
            .ok_or_else(|| Error::File("the GGUF file has no tokenizer.ggml.tokens".to_owned()))?;
        let kinds = keys
            .list(
                "tokenizer.ggml.token_type",
                "a list of integers",
                |value| match value {
                    Value::Int(kind) => Some(*kind),
                    _ => None,
                },
            )?
            .unwrap_or_else(|| vec![NORMAL; tokens.len()]);
        check_length("tokenizer.ggml.token_type", kinds.len(), tokens.len())?;
        let distinct: HashSet<&str> = tokens.iter().copied().collect();
        if distinct.len() != tokens.len() {
            return Err(Error::File(
                "corrupt GGUF metadata: tokenizer.ggml.tokens names a token twice".to_owned(),
            ));
        }
        Ok(Self { tokens, kinds })
    }

    pub(super) fn ids(&self) -> HashMap<&'a str, usize> {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, &token)| (token, id))
            .collect()
    }

    pub(super) fn added_tokens(&self) -> Vec<Json> {
        let listed = |kind: i128| matches!(kind, UNKNOWN | CONTROL | USER_DEFINED);
        (0..self.tokens.len())
            .filter(|&id| listed(self.kinds[id]))
            .map(|id| json_pieces::added_token(id as u32, self.tokens[id], self.kinds[id] != USER_DEFINED))
            .collect()
    }
}

fn roles(keys: &Keys<'_>, vocab_size: usize) -> Result<Vec<(&'static str, u32)>> {
    let mut roles = Vec::new();
    for (role, name) in ROLE_KEYS {
        if let Some(id) = keys.id(&format!("tokenizer.ggml.{name}"), vocab_size)? {
            roles.push((role, id as u32));
        }
    }
    Ok(roles)
}

fn chat_templates(keys: &Keys<'_>) -> Result<Vec<(String, String)>> {
    let mut templates = Vec::new();
    if let Some(template) = keys.text("tokenizer.chat_template")? {
        templates.push(("default".to_owned(), template.to_owned()));
    }
    for name in keys.texts("tokenizer.chat_templates")?.unwrap_or_default() {
        if let Some(template) = keys.text(&format!("tokenizer.chat_template.{name}"))? {
            templates.push((name.to_owned(), template.to_owned()));
        }
    }
    Ok(templates)
}
