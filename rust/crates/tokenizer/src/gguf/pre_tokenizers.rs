//! Owns what each name of `tokenizer.ggml.pre` stands for, as pieces of a `tokenizer.json`.

use serde_json::{Value, json};

const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a byte-level vocabulary cuts text before its merges.
pub(super) struct PreTokenizer {
    pub(super) stages: Vec<Value>,
    pub(super) normalizer: Value,
    pub(super) ignore_merges: bool,
    /// Whether a file without `tokenizer.ggml.add_bos_token` puts the first token there.
    pub(super) adds_bos: bool,
}

/// The pre-tokenizer of a name, or `None` where the name is unknown.
pub(super) fn named(name: &str) -> Option<PreTokenizer> {
    let stages = match name {
        "gpt-2" | "mpt" | "default" => vec![byte_level(true)],
        "smollm" | "starcoder" | "refact" | "command-r" => vec![
            json!({"type": "Digits", "individual_digits": true}),
            byte_level(true),
        ],
        "qwen2" => vec![split(QWEN2_SPLIT), byte_level(false)],
        "qwen35" => vec![split(QWEN35_SPLIT), byte_level(false)],
        "llama-bpe" | "llama3" | "llama-v3" => vec![split(LLAMA3_SPLIT), byte_level(false)],
        "falcon" => vec![
            json!({"type": "Punctuation", "behavior": "Contiguous"}),
            byte_level(true),
            split("[0-9][0-9][0-9]"),
        ],
        "deepseek-coder" => vec![
            split("[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split("[\u{4e00}-\u{9fa5}\u{0800}-\u{4e00}\u{ac00}-\u{d7ff}]+"),
            split(r"\p{N}"),
            byte_level(false),
        ],
        _ => return None,
    };
    let llama3 = matches!(name, "llama-bpe" | "llama3" | "llama-v3");
    Some(PreTokenizer {
        stages,
        normalizer: if name == "qwen2" {
            json!({"type": "NFC"})
        } else {
            Value::Null
        },
        ignore_merges: llama3,
        adds_bos: llama3,
    })
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}
