//! Owns reading `model`: a BPE over the byte-level alphabet.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::file::ModelEntry;
use crate::alphabet::Alphabet;
use crate::error::{Result, Unsupported};
use crate::merges::Merges;
use crate::model::Model;
use crate::vocabulary::Vocabulary;

/// The vocabulary as written: token to id.
pub(super) struct Ids<'a>(HashMap<&'a str, u32, ahash::RandomState>);

impl<'a> Ids<'a> {
    pub(super) fn read(model: &'a ModelEntry<'_>) -> Result<Self> {
        let ids: HashMap<&str, u32, _> = (model.vocab.0.iter())
            .map(|(token, id)| (Cow::as_ref(token), *id))
            .collect();
        let distinct: HashSet<u32, ahash::RandomState> = ids.values().copied().collect();
        if distinct.len() != ids.len() {
            return Err(unsupported("two tokens share an id"));
        }
        Ok(Self(ids))
    }

    pub(super) fn get(&self, token: &str) -> Option<u32> {
        self.0.get(token).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn unsupported(reason: impl Into<String>) -> Unsupported {
    Unsupported::new("model", reason)
}

pub(super) fn read(model: &ModelEntry<'_>, ids: &Ids) -> Result<Model> {
    check(model)?;
    let alphabet = Alphabet::new();
    let tokens: Vec<(Vec<u8>, u32)> = (ids.0.iter())
        .filter_map(|(token, &id)| Some((alphabet.bytes_of(token)?, id)))
        .collect();
    let vocabulary = Vocabulary::new(tokens);
    let missing = vocabulary.missing_bytes();
    if !missing.is_empty() && (model.unk_token.is_some() || model.byte_fallback) {
        return Err(unsupported(
            "bytes without a token, and a token that stands in for them",
        ));
    }
    let merges = Merges::new(&rules(model, ids, &alphabet)?, |byte| vocabulary.byte_id(byte))?;
    Ok(Model::new(vocabulary, merges, model.ignore_merges))
}

fn check(model: &ModelEntry<'_>) -> Result<()> {
    if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
        return Err(unsupported(format!("the type is {:?}, not BPE", model.kind)));
    }
    if model.kind.is_none() && model.merges.is_empty() {
        return Err(unsupported("the type is not stated"));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("dropout makes encoding random"));
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if affixes
        .iter()
        .any(|affix| affix.as_deref().is_some_and(|text| !text.is_empty()))
    {
        return Err(unsupported("subword prefixes and word suffixes"));
    }
    Ok(())
}

/// Each merge as ids, in order of rank.
fn rules(model: &ModelEntry<'_>, ids: &Ids, alphabet: &Alphabet) -> Result<Vec<(u32, u32, u32)>> {
    let mut joined = String::new();
    let mut rules = Vec::with_capacity(model.merges.len());
    for entry in &model.merges {
        joined.clear();
        joined.push_str(&entry.0);
        joined.push_str(&entry.1);
        let found = (ids.get(&entry.0), ids.get(&entry.1), ids.get(&joined));
        let (Some(left), Some(right), Some(made)) = found else {
            return Err(unsupported(format!(
                "a merge of tokens outside the vocabulary: {joined:?}"
            )));
        };
        if !alphabet.covers(&joined) {
            return Err(unsupported(format!(
                "a merge outside the byte-level alphabet: {joined:?}"
            )));
        }
        rules.push((left, right, made));
    }
    Ok(rules)
}
