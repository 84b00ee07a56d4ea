//! Owns `SentencePiece` vocabularies of GGUF files: scored BPE, unigram, and Gemma 4's BPE with listed merges.

use serde_json::{Value as Json, json};

use super::byte_level;
use super::keys::Keys;
use super::vocabulary::{Plan, Vocabulary};
use crate::error::Result;
use crate::formats::piece_kinds::BYTE;
use crate::formats::sentence_piece::tokenizer_json;
use crate::formats::sentence_piece_model::{Algorithm, Model, Spaces, check_charsmap};

/// The plan of a `llama` vocabulary; merges follow from the scores.
pub(super) fn scored_bpe(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Plan> {
    let scores = keys.scores(vocabulary.tokens.len())?;
    let model = model(keys, vocabulary, scores, Algorithm::Bpe)?;
    Ok(Plan::new(tokenizer_json(&model, &Json::Null), true))
}

/// The plan of a `t5` vocabulary, which other unigram models (XLM-R) use too.
pub(super) fn unigram(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Plan> {
    let scores = keys.scores(vocabulary.tokens.len())?;
    let mut model = model(keys, vocabulary, scores, Algorithm::Unigram)?;
    model.byte_fallback = vocabulary.kinds.contains(&BYTE);
    model.charsmap = keys
        .bytes("tokenizer.ggml.precompiled_charsmap")?
        .unwrap_or_default();
    check_charsmap(&model.charsmap)?;
    model.spaces.remove_extra = keys
        .flag("tokenizer.ggml.remove_extra_whitespaces")?
        .unwrap_or(true);
    let mut plan = Plan::new(tokenizer_json(&model, &Json::Null), false);
    plan.adds_eos = true;
    Ok(plan)
}

/// The plan of a `gemma4` vocabulary: merges are listed, lines and their breaks are merged apart.
pub(super) fn listed_bpe(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Plan> {
    let scores = vec![0.0; vocabulary.tokens.len()];
    let mut model = model(keys, vocabulary, scores, Algorithm::Bpe)?;
    model.spaces.add_prefix = keys.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let mut json = tokenizer_json(&model, &Json::Null);
    json["pre_tokenizer"] = json!({
        "type": "Split", "pattern": {"Regex": "\n+"}, "behavior": "Isolated", "invert": false,
    });
    json["model"]["merges"] = byte_level::merges(keys)?.into();
    Ok(Plan::new(json, true))
}

fn model(
    keys: &Keys<'_>,
    vocabulary: &Vocabulary<'_>,
    scores: Vec<f64>,
    algorithm: Algorithm,
) -> Result<Model> {
    Ok(Model {
        pieces: vocabulary.tokens.iter().map(|&token| token.to_owned()).collect(),
        scores,
        piece_kinds: vocabulary.kinds.clone(),
        algorithm,
        byte_fallback: true,
        bos: None,
        eos: None,
        pad: None,
        charsmap: Vec::new(),
        spaces: Spaces {
            add_prefix: keys.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            remove_extra: false,
            escape: true,
        },
    })
}
