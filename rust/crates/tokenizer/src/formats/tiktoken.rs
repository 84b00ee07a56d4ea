//! Owns the tiktoken text format: one `base64 rank` a line. Patterns and special tokens come from elsewhere.

use std::collections::HashMap;
use std::path::Path;

pub use super::byte_level::NamedToken;
use super::byte_level::RankedVocabulary;
use super::known_ranks::{self, KnownRanks};
use super::{FormatTokenizer, base64, in_file, read_file};
use crate::error::{Error, Result};
use crate::text_tokenizer::TextTokenizer;

/// What the file does not say. Where it is `None`, a file whose content is known supplies it.
#[derive(Debug, Clone, Default)]
pub struct TiktokenOptions {
    /// The regular expression that cuts text before the merges.
    pub pattern: Option<String>,
    /// The tokens outside the ranks.
    pub special_tokens: Option<Vec<NamedToken>>,
}

/// Load the file at `path`.
pub fn load(path: &Path, options: &TiktokenOptions) -> Result<FormatTokenizer> {
    let content = read_file(path)?;
    in_file(path, build(&content, options))
}

fn build(content: &[u8], options: &TiktokenOptions) -> Result<FormatTokenizer> {
    let tokens = parse(content)?;
    let known = known_ranks::find(content);
    let pattern = options
        .pattern
        .as_deref()
        .or(known.as_ref().map(|known| known.pattern));
    let Some(pattern) = pattern else {
        return Err(Error::File(
            "a tiktoken file holds no pattern that cuts text, and the content of this one is not known: \
             give `pattern` (and `special_tokens`)"
                .to_owned(),
        ));
    };
    let from_options = options.special_tokens.as_deref();
    let named = match (from_options, &known) {
        (Some(tokens), _) => tokens,
        (None, Some(known)) => &known.tokens,
        (None, None) => {
            return Err(Error::File(
                "a tiktoken file holds no special tokens, and the content of this one is not known: \
                 give `special_tokens`"
                    .to_owned(),
            ));
        }
    };
    let is_there = |text: &&str| named.iter().any(|token| token.content == **text);
    let bos = known.as_ref().and_then(|known| known.bos).filter(is_there);
    let json = RankedVocabulary {
        ranks: ranks(&tokens)?,
        id_offset: 0,
        pattern,
        tokens: named,
        nfc: known.as_ref().is_some_and(|known| known.nfc),
        bos: bos.filter(|_| known.as_ref().is_some_and(|known| known.adds_bos)),
    }
    .tokenizer_json()?;
    let (roles, eos_ids) = known
        .as_ref()
        .map_or_else(Default::default, |known| facts(known, named));
    Ok(FormatTokenizer {
        tokenizer: TextTokenizer::from_json(json.to_string().as_bytes())?,
        roles,
        eos_ids,
    })
}

fn facts(known: &KnownRanks, named: &[NamedToken]) -> (Vec<(&'static str, String)>, Vec<u32>) {
    let id_of = |text: &str| {
        named
            .iter()
            .find(|token| token.content == text)
            .map(|token| token.id)
    };
    let roles = [
        ("bos", known.bos),
        ("eos", known.ends.first().copied()),
        ("pad", known.pad),
    ];
    let present = |(role, text): (&'static str, Option<&'static str>)| {
        text.filter(|text| id_of(text).is_some())
            .map(|text| (role, text.to_owned()))
    };
    (
        roles.into_iter().filter_map(present).collect(),
        known.ends.iter().filter_map(|text| id_of(text)).collect(),
    )
}

fn parse(content: &[u8]) -> Result<Vec<(Vec<u8>, u32)>> {
    let mut tokens = Vec::new();
    for (line, number) in content.split(|&byte| byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let entry = entry(line).ok_or_else(|| {
            Error::File(format!(
                "line {number} is not a token in base64, a space and a rank"
            ))
        })?;
        tokens.push(entry);
    }
    Ok(tokens)
}

fn entry(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    let rank = std::str::from_utf8(&line[space + 1..]).ok()?;
    // `parse` takes a sign too, the format does not.
    let digits = rank.bytes().all(|byte| byte.is_ascii_digit());
    let token = base64::decode(&line[..space])?;
    Some((token, rank.parse().ok().filter(|_| digits)?))
}

fn ranks(tokens: &[(Vec<u8>, u32)]) -> Result<HashMap<&[u8], u32>> {
    let mut ranks = HashMap::with_capacity(tokens.len());
    for (token, rank) in tokens {
        if let Some(other) = ranks.insert(token.as_slice(), *rank) {
            return Err(Error::File(format!(
                "the token of rank {rank} is also that of rank {other}"
            )));
        }
    }
    Ok(ranks)
}
