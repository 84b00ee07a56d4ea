//! Owns the copy of a tokenizer for which no text spells a special token. Knows nothing of when it is asked for.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use serde_json::Value;
use tokenizers::{Model, Tokenizer};

use crate::error::{Error, Result};
use crate::text_tokenizer::fence;

/// A tokenizer with the same ids that never gives a special token for a text, only around it.
///
/// Tokens that were added without being special are matched as ever: vocabularies hold plain text among them.
pub(crate) fn plain_copy(inner: &Tokenizer) -> Result<Tokenizer> {
    let names = special_names_in_model(inner);
    let mut copy = if names.is_empty() {
        inner.clone()
    } else {
        without_names(inner, &names)?
    };
    copy.set_encode_special_tokens(true);
    Ok(copy)
}

/// The special tokens that the model itself could give for a piece of text, with a name that no text has.
fn special_names_in_model(inner: &Tokenizer) -> HashMap<String, String> {
    // A space never reaches a model that splits or marks words; the number keeps the name from being guessed.
    let nonce = RandomState::new().hash_one(0_u8);
    inner
        .get_added_vocabulary()
        .get_added_tokens_decoder()
        .values()
        .filter(|token| token.special && inner.get_model().token_to_id(&token.content).is_some())
        .map(|token| {
            (
                token.content.clone(),
                format!(" \n\u{fffe}{nonce:x} {}", token.content),
            )
        })
        .collect()
}

fn without_names(inner: &Tokenizer, names: &HashMap<String, String>) -> Result<Tokenizer> {
    let failed = |reason: String| Error::Library(format!("cannot copy the tokenizer: {reason}"));
    let mut json = serde_json::to_value(inner).map_err(|reason| failed(reason.to_string()))?;
    if let Some(Value::Array(tokens)) = json.get_mut("added_tokens") {
        for token in tokens {
            rename(&mut token["content"], names);
        }
    }
    let model = &mut json["model"];
    rename(&mut model["unk_token"], names);
    match model.get_mut("vocab") {
        Some(Value::Object(vocab)) => {
            for (name, other) in names {
                if let Some(id) = vocab.remove(name) {
                    vocab.insert(other.clone(), id);
                }
            }
        }
        Some(Value::Array(pieces)) => {
            for piece in pieces {
                rename(&mut piece[0], names);
            }
        }
        _ => {}
    }
    if let Some(Value::Array(merges)) = model.get_mut("merges") {
        merges.retain(|merge| !touches(merge, names));
    }
    let text = json.to_string();
    fence(|| Tokenizer::from_bytes(text.as_bytes())).map_err(failed)
}

fn rename(text: &mut Value, names: &HashMap<String, String>) {
    if let Some(other) = text.as_str().and_then(|text| names.get(text)) {
        *text = Value::String(other.clone());
    }
}

/// Whether a merge takes or makes one of the tokens.
fn touches(merge: &Value, names: &HashMap<String, String>) -> bool {
    let pair = match merge {
        Value::String(pair) => pair.split_once(' '),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
            _ => None,
        },
        _ => None,
    };
    pair.is_some_and(|(left, right)| {
        names.contains_key(left) || names.contains_key(right) || names.contains_key(&format!("{left}{right}"))
    })
}
