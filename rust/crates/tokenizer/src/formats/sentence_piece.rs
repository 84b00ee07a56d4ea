//! Owns the `tokenizer.json` that a `SentencePiece` model amounts to. Knows nothing of the wire format.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::scored_merges::merges_from_scores;
use super::sentence_piece_model::{Algorithm, Model};
use super::{FormatTokenizer, base64, charsmap, in_file, json_pieces, piece_kinds as kinds, read_file};
use crate::error::Result;
use crate::text_tokenizer::TextTokenizer;

/// What stands for a space inside pieces.
const MARK: &str = "\u{2581}";
/// How far the spelling of a byte piece is below every other piece, so that text which spells it is not the byte.
const BYTE_PENALTY: f64 = 1000.0;

/// What the model file does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentencePieceOptions {
    /// Put the first token before a text; unless told, BPE models do and unigram models do not.
    pub add_bos: Option<bool>,
    /// Put the last token behind a text; unless told, none do.
    pub add_eos: Option<bool>,
}

/// Load the file at `path`.
pub fn load(path: &Path, options: SentencePieceOptions) -> Result<FormatTokenizer> {
    let content = read_file(path)?;
    in_file(
        path,
        Model::parse(&content).and_then(|model| build(&model, options)),
    )
}

fn build(model: &Model, options: SentencePieceOptions) -> Result<FormatTokenizer> {
    let text = |id: Option<u32>| id.map(|id| (model.pieces[id as usize].as_str(), id));
    let add_bos = options.add_bos.unwrap_or(model.algorithm == Algorithm::Bpe);
    let bos = text(model.bos).filter(|_| add_bos);
    let eos = text(model.eos).filter(|_| options.add_eos.unwrap_or(false));
    let json = tokenizer_json(model, &json_pieces::ends(bos, eos));
    let unknown = model.unknown();
    let roles = [
        ("bos", text(model.bos)),
        ("eos", text(model.eos)),
        ("pad", text(model.pad)),
        ("unk", text(unknown.map(|id| id as u32))),
    ];
    Ok(FormatTokenizer {
        tokenizer: TextTokenizer::from_json(json.to_string().as_bytes())?,
        roles: roles
            .into_iter()
            .filter_map(|(role, found)| found.map(|(text, _)| (role, text.to_owned())))
            .collect(),
        eos_ids: model.eos.into_iter().collect(),
    })
}

/// The `tokenizer.json` with the same ids.
pub(crate) fn tokenizer_json(model: &Model, post_processor: &Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added_tokens(model),
        "normalizer": normalizer(model),
        "pre_tokenizer": null,
        "post_processor": post_processor,
        "decoder": decoder(model),
        "model": match model.algorithm {
            Algorithm::Bpe => bpe(model),
            Algorithm::Unigram => unigram(model),
        },
    })
}

fn added_tokens(model: &Model) -> Vec<Value> {
    (0..)
        .zip(model.pieces.iter().zip(&model.piece_kinds))
        .filter(|(_, (_, kind))| matches!(**kind, kinds::UNKNOWN | kinds::CONTROL | kinds::USER_DEFINED))
        .map(|(id, (piece, &kind))| json_pieces::added_token(id, piece, kind != kinds::USER_DEFINED))
        .collect()
}

fn normalizer(model: &Model) -> Value {
    let replace =
        |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let mut stages = Vec::new();
    if !model.charsmap.is_empty() {
        // The library maps a line break of two characters as one, by its first alone; the format maps both.
        if let Some(both) = line_break(&model.charsmap) {
            stages.push(replace(json!({"String": "\r\n"}), &both));
        }
        stages.push(json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&model.charsmap)}));
    }
    if model.spaces.remove_extra {
        stages.push(replace(json!({"Regex": r"\A +| +\z"}), ""));
        stages.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    if model.spaces.add_prefix {
        let prefix = if model.spaces.escape { MARK } else { " " };
        stages.push(json!({"type": "Prepend", "prepend": prefix}));
    }
    if model.spaces.escape {
        stages.push(replace(json!({"String": " "}), MARK));
    }
    json!({"type": "Sequence", "normalizers": stages})
}

/// What a character map makes of the two characters of a line break, where it has no entry for the pair.
fn line_break(map: &[u8]) -> Option<String> {
    let alone = |character| charsmap::lookup(map, character);
    if alone(b"\r\n").is_some() {
        return None;
    }
    Some(format!("{}{}", alone(b"\r")?, alone(b"\n")?))
}

fn decoder(model: &Model) -> Value {
    let mut stages = Vec::new();
    if model.spaces.escape {
        stages.push(json!({"type": "Replace", "pattern": {"String": MARK}, "content": " "}));
    }
    if model.byte_fallback {
        stages.push(json!({"type": "ByteFallback"}));
    }
    stages.push(json!({"type": "Fuse"}));
    if model.spaces.add_prefix || model.spaces.remove_extra {
        // A model without extra spaces shows none before its first word, however many pieces spell them.
        let start = if model.spaces.remove_extra { u32::MAX } else { 1 };
        stages.push(json!({"type": "Strip", "content": " ", "start": start, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": stages})
}

fn bpe(model: &Model) -> Value {
    let pieces: Vec<&str> = model.pieces.iter().map(String::as_str).collect();
    let vocab: Map<String, Value> = model
        .pieces
        .iter()
        .cloned()
        .zip((0_u32..).map(Value::from))
        .collect();
    json!({
        "type": "BPE", "dropout": null, "unk_token": model.unknown().map(|id| &model.pieces[id]), "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": model.byte_fallback,
        "ignore_merges": false, "vocab": vocab,
        "merges": merges_from_scores(&pieces, &model.piece_kinds, &model.scores),
    })
}

fn unigram(model: &Model) -> Value {
    let lowest = model
        .scores
        .iter()
        .zip(&model.piece_kinds)
        .filter(|(_, kind)| **kind == kinds::NORMAL)
        .fold(0.0, |lowest: f64, (score, _)| lowest.min(*score));
    let vocab: Vec<Value> = model
        .pieces
        .iter()
        .zip(model.scores.iter().zip(&model.piece_kinds))
        .map(|(piece, (&score, &kind))| {
            let penalised = kind == kinds::BYTE || kind == kinds::UNUSED;
            json!([piece, if penalised { lowest - BYTE_PENALTY } else { score }])
        })
        .collect();
    json!({"type": "Unigram", "unk_id": model.unknown(), "vocab": vocab, "byte_fallback": model.byte_fallback})
}
