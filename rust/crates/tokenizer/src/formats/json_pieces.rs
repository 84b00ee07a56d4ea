//! Owns the pieces of a `tokenizer.json` that several formats share. Knows nothing of the formats.

use serde_json::{Map, Value, json};

pub(crate) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

pub(crate) fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

pub(crate) fn added_token(id: u32, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    })
}

/// What puts the first token in front of a text and the last one behind it.
pub(crate) fn ends(bos: Option<(&str, u32)>, eos: Option<(&str, u32)>) -> Value {
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let mut specials = Map::new();
    for (text, id) in bos.iter().chain(&eos) {
        specials.insert(
            (*text).to_owned(),
            json!({"id": text, "ids": [id], "tokens": [text]}),
        );
    }
    let around = |sequence: &str, type_id: u32| {
        let token = |(text, _): (&str, u32)| json!({"SpecialToken": {"id": text, "type_id": type_id}});
        let middle = json!({"Sequence": {"id": sequence, "type_id": type_id}});
        let parts: Vec<Value> = bos
            .map(token)
            .into_iter()
            .chain([middle])
            .chain(eos.map(token))
            .collect();
        parts
    };
    let single = around("A", 0);
    let pair: Vec<Value> = single.iter().cloned().chain(around("B", 1)).collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials})
}
