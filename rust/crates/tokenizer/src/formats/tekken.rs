//! Owns Mistral's `tekken.json`: byte-level ranks behind a block of special tokens.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::byte_level::{NamedToken, RankedVocabulary};
use super::{FormatTokenizer, base64, in_file, read_file};
use crate::error::{Error, Result};
use crate::text_tokenizer::TextTokenizer;

/// The special tokens of files that do not list them (versions up to v7), by id.
const UNLISTED: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
const ROLES: [(&str, &str); 4] = [
    ("bos", "<s>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("pad", "<pad>"),
];
/// Far more than any file has.
const MAX_SPECIAL_TOKENS: u64 = 1 << 20;

/// Load the file at `path`.
pub fn load(path: &Path) -> Result<FormatTokenizer> {
    let content = read_file(path)?;
    in_file(path, build(&content))
}

fn build(content: &[u8]) -> Result<FormatTokenizer> {
    let file: Value =
        serde_json::from_slice(content).map_err(|reason| Error::File(format!("not valid JSON: {reason}")))?;
    let config = object(file.get("config"), "config")?;
    let pattern = text(config, "pattern", "config")?;
    let num_special = count(config, "default_num_special_tokens")?;
    let size = count(config, "default_vocab_size")?;
    if num_special > MAX_SPECIAL_TOKENS || size < num_special {
        return Err(Error::File(format!(
            "config.default_vocab_size is {size}, config.default_num_special_tokens is {num_special}"
        )));
    }
    let vocab = entries(file.get("vocab"), "vocab")?;
    // The file lists more tokens than the model uses.
    let used = (size - num_special) as usize;
    if vocab.len() < used {
        return Err(Error::File(format!(
            "vocab has {} tokens, config.default_vocab_size asks for {used}",
            vocab.len()
        )));
    }
    let tokens = tokens(&vocab[..used])?;
    let mut ranks = HashMap::with_capacity(tokens.len());
    for (rank, token) in (0..).zip(&tokens) {
        if ranks.insert(token.as_slice(), rank).is_some() {
            return Err(Error::File(format!("the token of rank {rank} is in vocab twice")));
        }
    }
    let named = special_tokens(file.get("special_tokens"), num_special as u32)?;
    let has = |text: &str| named.iter().any(|token| token.content == text);
    let json = RankedVocabulary {
        ranks,
        id_offset: num_special as u32,
        pattern,
        tokens: &named,
        nfc: false,
        bos: Some("<s>").filter(|bos| has(bos)),
    }
    .tokenizer_json()?;
    Ok(FormatTokenizer {
        tokenizer: TextTokenizer::from_json(json.to_string().as_bytes())?,
        roles: ROLES
            .into_iter()
            .filter(|(_, text)| has(text))
            .map(|(role, text)| (role, text.to_owned()))
            .collect(),
        eos_ids: named
            .iter()
            .filter(|token| token.content == "</s>")
            .map(|token| token.id)
            .collect(),
    })
}

/// The tokens' bytes; the entries stand in the order of their ranks.
fn tokens(vocab: &[Value]) -> Result<Vec<Vec<u8>>> {
    (0_u64..)
        .zip(vocab)
        .map(|(rank, entry)| {
            let place = format!("vocab[{rank}]");
            let entry = object(Some(entry), &place)?;
            if entry.get("rank").and_then(Value::as_u64) != Some(rank) {
                return Err(Error::File(format!("{place} does not have the rank {rank}")));
            }
            base64::decode(text(entry, "token_bytes", &place)?.as_bytes())
                .ok_or_else(|| Error::File(format!("{place}.token_bytes is not base64")))
        })
        .collect()
}

/// The listed tokens, and fillers for the ids that no listed token has.
fn special_tokens(listed: Option<&Value>, count: u32) -> Result<Vec<NamedToken>> {
    let mut texts: HashMap<u32, (String, bool)> = HashMap::new();
    match listed {
        None | Some(Value::Null) => {
            texts.extend((0..).zip(UNLISTED.map(|text| (text.to_owned(), true))));
        }
        Some(_) => {
            for (at, entry) in entries(listed, "special_tokens")?.iter().enumerate() {
                let place = format!("special_tokens[{at}]");
                let entry = object(Some(entry), &place)?;
                let id = entry
                    .get("rank")
                    .and_then(Value::as_u64)
                    .filter(|&id| id < u64::from(count))
                    .ok_or_else(|| Error::File(format!("{place}.rank is not below {count}")))?;
                let control = entry.get("is_control").and_then(Value::as_bool).unwrap_or(true);
                let content = text(entry, "token_str", &place)?.to_owned();
                if texts.insert(id as u32, (content, control)).is_some() {
                    return Err(Error::File(format!(
                        "{place}.rank is that of another special token"
                    )));
                }
            }
        }
    }
    Ok((0..count)
        .map(|id| {
            let (content, special) = texts
                .remove(&id)
                .unwrap_or_else(|| (format!("<SPECIAL_{id}>"), true));
            NamedToken { content, id, special }
        })
        .collect())
}

fn object<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a Map<String, Value>> {
    value
        .and_then(Value::as_object)
        .ok_or_else(|| Error::File(format!("{place} is not a JSON object")))
}

fn entries<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a [Value]> {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| Error::File(format!("{place} is not a list")))
}

fn text<'a>(object: &'a Map<String, Value>, key: &str, place: &str) -> Result<&'a str> {
    object
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| Error::File(format!("{place}.{key} is not a text")))
}

fn count(config: &Map<String, Value>, key: &str) -> Result<u64> {
    config
        .get(key)
        .and_then(Value::as_u64)
        .ok_or_else(|| Error::File(format!("config.{key} is not a number of tokens")))
}
