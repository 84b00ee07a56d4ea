//! Owns `WordPiece` vocabularies of GGUF files (`bert`). Knows nothing of the file format.

use serde_json::{Map, Value as Json, json};

use super::keys::Keys;
use super::vocabulary::{Plan, Vocabulary};
use crate::error::{Error, Result};
use crate::formats::json_pieces;
use crate::formats::piece_kinds::{CONTROL, UNKNOWN, USER_DEFINED};

/// GGUF marks the pieces that start a word, BERT the ones that go on with it.
const WORD_START: char = '\u{2581}';

/// The plan of a `bert` vocabulary.
pub(super) fn plan(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Plan> {
    let names: Vec<String> = vocabulary.tokens.iter().map(|token| name(token)).collect();
    let vocab: Map<String, Json> = names.iter().cloned().zip((0_u32..).map(Json::from)).collect();
    if vocab.len() != names.len() {
        return Err(Error::File(
            "corrupt GGUF metadata: tokenizer.ggml.tokens names a word piece twice".to_owned(),
        ));
    }
    let unknown = keys.id("tokenizer.ggml.unknown_token_id", names.len())?;
    let unknown = unknown.map_or("[UNK]", |id| names[id].as_str());
    if !vocab.contains_key(unknown) {
        return Err(Error::File(
            "the GGUF file has no tokenizer.ggml.unknown_token_id".to_owned(),
        ));
    }
    let lowercase = keys.flag("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip = keys
        .flag("tokenizer.ggml.normalizer.strip_accents")?
        .unwrap_or(lowercase);
    let added: Vec<Json> = (0..)
        .zip(names.iter().zip(&vocabulary.kinds))
        .filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, (name, kind))| json_pieces::added_token(id, name, *kind != USER_DEFINED))
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": strip, "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    let mut plan = Plan::new(json, true);
    (plan.adds_eos, plan.first_role, plan.last_role) = (true, "cls", "sep");
    Ok(plan)
}

/// A piece as BERT writes it.
fn name(token: &str) -> String {
    if let Some(word) = token.strip_prefix(WORD_START) {
        return word.to_owned();
    }
    let bracketed = token.starts_with('[') && token.ends_with(']');
    if bracketed {
        token.to_owned()
    } else {
        format!("##{token}")
    }
}
