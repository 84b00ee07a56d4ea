//! Rebuilds a tokenizer from GGUF metadata. Knows the `tokenizer.*` keys and nothing of the file format.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Value as Json, json};

use super::metadata::{Metadata, Value, read_metadata};
use super::pre_tokenizers;
use crate::error::{Error, Result};
use crate::text_tokenizer::TextTokenizer;

const NORMAL: i128 = 1;
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

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

fn build(metadata: &Metadata) -> Result<GgufTokenizer> {
    let keys = Keys(metadata);
    let model = keys.text("tokenizer.ggml.model")?.ok_or_else(|| {
        Error::File("the GGUF file holds no tokenizer (no tokenizer.ggml.model)".to_owned())
    })?;
    let vocabulary = Vocabulary::read(&keys)?;
    let (json, bos_by_default) = match model {
        "gpt2" => byte_level_json(&keys, &vocabulary)?,
        "llama" => (sentence_piece_json(&keys, &vocabulary)?, true),
        other => {
            return Err(Error::File(format!(
                "the tokenizer model {other:?} (tokenizer.ggml.model) is not supported; gpt2 and llama are"
            )));
        }
    };
    let roles = roles(&keys, vocabulary.tokens.len())?;
    let at_start = keys
        .flag("tokenizer.ggml.add_bos_token")?
        .unwrap_or(bos_by_default);
    let at_end = keys.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let text_of = |role: &str| -> Option<&str> {
        let (_, id) = roles.iter().find(|(name, _)| *name == role)?;
        vocabulary.tokens.get(*id as usize).copied()
    };
    let bos = text_of("bos").filter(|_| at_start);
    let eos = text_of("eos").filter(|_| at_end);
    let mut tokenizer = TextTokenizer::from_json(json.to_string().as_bytes())?;
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

/// Typed access to the metadata; a value of another type is an error that names the key.
struct Keys<'a>(&'a Metadata);

impl<'a> Keys<'a> {
    fn wrong(key: &str, wanted: &str) -> Error {
        Error::File(format!("corrupt GGUF metadata: {key} is not {wanted}"))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(Self::wrong(key, "a text")),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Self::wrong(key, "a truth value")),
        }
    }

    fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        pick: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let list = match self.0.get(key) {
            None => return Ok(None),
            Some(Value::List(list)) => list,
            Some(_) => return Err(Self::wrong(key, "a list")),
        };
        let picked: Option<Vec<T>> = list.iter().map(pick).collect();
        picked.map(Some).ok_or_else(|| Self::wrong(key, wanted))
    }

    fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.list(key, "a list of texts", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<i128>,
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

    fn ids(&self) -> HashMap<&'a str, usize> {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, &token)| (token, id))
            .collect()
    }

    fn added_tokens(&self) -> Vec<Json> {
        let listed = |kind: i128| matches!(kind, UNKNOWN | CONTROL | USER_DEFINED);
        (0..self.tokens.len())
            .filter(|&id| listed(self.kinds[id]))
            .map(|id| {
                json!({
                    "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": self.kinds[id] != USER_DEFINED,
                })
            })
            .collect()
    }
}

fn check_length(key: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::File(format!(
        "corrupt GGUF metadata: {key} has {found} entries for {wanted} tokens"
    )))
}

fn roles(keys: &Keys<'_>, vocab_size: usize) -> Result<Vec<(&'static str, u32)>> {
    let mut roles = Vec::new();
    for (role, name) in ROLE_KEYS {
        let key = format!("tokenizer.ggml.{name}");
        match keys.0.get(&key) {
            None => {}
            Some(&Value::Int(id)) if (0..vocab_size as i128).contains(&id) => roles.push((role, id as u32)),
            Some(Value::Int(id)) => {
                return Err(Error::File(format!(
                    "corrupt GGUF metadata: {key} is {id}, the vocabulary has {vocab_size} tokens"
                )));
            }
            Some(_) => return Err(Keys::wrong(&key, "an integer")),
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

fn byte_level_json(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<(Json, bool)> {
    let name = keys.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = pre_tokenizers::named(name).ok_or_else(|| {
        Error::File(format!(
            "the pre-tokenizer {name:?} (tokenizer.ggml.pre) is not supported"
        ))
    })?;
    let merges = keys
        .texts("tokenizer.ggml.merges")?
        .ok_or_else(|| Error::File("the GGUF file has no tokenizer.ggml.merges".to_owned()))?;
    let merges: Vec<Json> = merges
        .iter()
        .map(|merge| {
            // The separator is the first space that is not the merge's own first character.
            let at = merge
                .char_indices()
                .skip(1)
                .find(|(_, character)| *character == ' ');
            at.map(|(at, _)| json!([merge[..at], merge[at + 1..]]))
                .ok_or_else(|| {
                    Error::File(format!(
                        "corrupt GGUF metadata: {merge:?} in tokenizer.ggml.merges is no pair"
                    ))
                })
        })
        .collect::<Result<_>>()?;
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": pre.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.stages},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges, "vocab": vocabulary.ids(), "merges": merges,
        },
    });
    Ok((json, pre.adds_bos))
}

fn sentence_piece_json(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Json> {
    let scores = keys
        .list(
            "tokenizer.ggml.scores",
            "a list of numbers",
            |value| match value {
                Value::Float(score) => Some(*score),
                _ => None,
            },
        )?
        .ok_or_else(|| Error::File("the GGUF file has no tokenizer.ggml.scores".to_owned()))?;
    check_length("tokenizer.ggml.scores", scores.len(), vocabulary.tokens.len())?;
    let prefix = keys.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let unknown = vocabulary.kinds.iter().position(|&kind| kind == UNKNOWN);
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| vocabulary.tokens[id]),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary.ids(),
            "merges": merges_from_scores(vocabulary, &scores),
        },
    }))
}

/// The merge list that a scored vocabulary implies: every way to split a piece into two pieces, best score first.
fn merges_from_scores(vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Vec<[String; 2]> {
    let mergeable = |id: usize| matches!(vocabulary.kinds[id], NORMAL | USER_DEFINED);
    let ids = vocabulary.ids();
    let mut merges = Vec::new();
    for (id, token) in vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| mergeable(*id))
    {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right))
                && mergeable(left_id)
                && mergeable(right_id)
            {
                merges.push((scores[id], id, left_id, right_id));
            }
        }
    }
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then(a.1.cmp(&b.1))
            .then((a.2, a.3).cmp(&(b.2, b.3)))
    });
    let text = |id: usize| vocabulary.tokens[id].to_owned();
    merges
        .into_iter()
        .map(|(_, _, left, right)| [text(left), text(right)])
        .collect()
}
