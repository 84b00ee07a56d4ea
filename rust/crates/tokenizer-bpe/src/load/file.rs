//! Owns the shape of a `tokenizer.json` as far as this crate reads it. Judges nothing.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The parts of a `tokenizer.json`.
#[derive(Deserialize)]
pub(crate) struct File<'a> {
    #[serde(default)]
    pub(crate) truncation: Value,
    #[serde(default)]
    pub(crate) padding: Value,
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedTokenEntry>,
    #[serde(default)]
    pub(crate) normalizer: Value,
    #[serde(default)]
    pub(crate) pre_tokenizer: Value,
    #[serde(default)]
    pub(crate) post_processor: Value,
    #[serde(borrow)]
    pub(crate) model: ModelEntry<'a>,
}

/// One of `added_tokens`.
// The flags are those of the file format, independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Deserialize, Clone)]
pub(crate) struct AddedTokenEntry {
    pub(crate) content: String,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    pub(crate) special: bool,
}

/// The model; every field but vocabulary and merges decides whether the model is of the family.
#[derive(Deserialize)]
pub(crate) struct ModelEntry<'a> {
    #[serde(rename = "type", default)]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) dropout: Option<f32>,
    #[serde(default)]
    pub(crate) unk_token: Option<String>,
    #[serde(default)]
    pub(crate) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(crate) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    #[serde(borrow, default)]
    pub(crate) vocab: Tokens<'a>,
    #[serde(borrow, default)]
    pub(crate) merges: Vec<MergeEntry<'a>>,
}

/// The vocabulary in the order of the file.
#[derive(Default)]
pub(crate) struct Tokens<'a>(pub(crate) Vec<(Cow<'a, str>, u32)>);

/// A merge rule, as a pair or as one line with a space.
pub(crate) struct MergeEntry<'a>(pub(crate) Cow<'a, str>, pub(crate) Cow<'a, str>);

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Tokens<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Tokens<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a map of tokens to ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(Tokens(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeEntry<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = MergeEntry<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a pair of tokens, or a line with a space between two")
            }
            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Self::Value, E> {
                let (left, right) = line
                    .split_once(' ')
                    .ok_or_else(|| E::custom("a merge without a space"))?;
                Ok(MergeEntry(left.into(), right.into()))
            }
            fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
                let (left, right) = line
                    .split_once(' ')
                    .ok_or_else(|| E::custom("a merge without a space"))?;
                Ok(MergeEntry(left.to_owned().into(), right.to_owned().into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Self::Value, A::Error> {
                let mut next = || {
                    let Text(part) = pair
                        .next_element()?
                        .ok_or_else(|| A::Error::custom("a merge of one token"))?;
                    Ok(part)
                };
                let (left, right) = (next()?, next()?);
                Ok(MergeEntry(left, right))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}
