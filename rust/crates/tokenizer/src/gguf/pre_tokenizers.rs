//! Owns what each name of `tokenizer.ggml.pre` stands for, as pieces of a `tokenizer.json`.

use serde_json::{Value, json};

use crate::formats::json_pieces::{byte_level, split};
use crate::formats::known_ranks::{CL100K, O200K, QWEN2, QWEN35};

/// Mistral's tekken: o200k without contractions, digits one by one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK3_CJK: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const DEEPSEEK_CJK: &str = "[\u{4e00}-\u{9fa5}\u{0800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
/// Letters with case, as of the Unicode version that `DeepSeek` LLM was made with.
const DEEPSEEK_LLM_WORDS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\
\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\
\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\
\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\
\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\
\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\
\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\
\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\
\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\
\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\
\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\
\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\
\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";
const DEEPSEEK_LLM_SIGNS: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";

/// How a byte-level vocabulary cuts text before its merges.
pub(super) struct PreTokenizer {
    pub(super) stages: Vec<Value>,
    pub(super) normalizer: Value,
    pub(super) ignore_merges: bool,
    /// Whether a file without `tokenizer.ggml.add_bos_token` puts the first token there.
    pub(super) adds_bos: bool,
}

/// The names whose files are those of one family, under the family's own name.
fn family(name: &str) -> &str {
    match name {
        "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => "llama-bpe",
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" | "glm5" => "cl100k",
        "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "gigachat" | "a.x-4.0"
        | "mellum" | "modern-bert" | "default" => "gpt-2",
        "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => "smollm",
        "stablelm2" | "hunyuan" | "solar-open" | "megrez" | "grok-2" => "qwen",
        "deepseek-r1-qwen" | "kormo" | "f2llmv2" => "qwen2",
        "hunyuan-dense" | "joyai-llm" => "deepseek-v3",
        "llama4" | "kanana2" | "minimax-m2" => "gpt-4o",
        other => other,
    }
}

/// The pre-tokenizer of a name, or `None` where the name is unknown.
pub(super) fn named(name: &str) -> Option<PreTokenizer> {
    let family = family(name);
    Some(PreTokenizer {
        stages: stages(family)?,
        normalizer: if family == "qwen2" {
            json!({"type": "NFC"})
        } else {
            Value::Null
        },
        ignore_merges: matches!(family, "llama-bpe" | "tekken" | "gpt-4o"),
        adds_bos: matches!(family, "llama-bpe" | "tekken"),
    })
}

fn stages(family: &str) -> Option<Vec<Value>> {
    Some(match family {
        "gpt-2" => vec![byte_level(true)],
        "smollm" => vec![
            json!({"type": "Digits", "individual_digits": true}),
            byte_level(true),
        ],
        "qwen" | "qwen2" => vec![split(QWEN2), byte_level(false)],
        "qwen35" => vec![split(QWEN35), byte_level(false)],
        "llama-bpe" | "cl100k" => vec![split(CL100K), byte_level(false)],
        "gpt-4o" => vec![split(O200K), byte_level(false)],
        "tekken" => vec![split(TEKKEN), byte_level(false)],
        "seed-coder" => vec![split(SEED_CODER), byte_level(false)],
        "falcon" => vec![
            json!({"type": "Punctuation", "behavior": "Contiguous"}),
            byte_level(true),
            split("[0-9][0-9][0-9]"),
        ],
        "deepseek-coder" => vec![
            split("[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split(DEEPSEEK_CJK),
            split(r"\p{N}"),
            byte_level(false),
        ],
        "deepseek-llm" => vec![
            split("[\r\n]"),
            split(DEEPSEEK_LLM_WORDS),
            split(DEEPSEEK_LLM_SIGNS),
            split(r"\s+$"),
            split(DEEPSEEK_CJK),
            split(r"\p{N}+"),
            byte_level(false),
        ],
        "deepseek-v3" => vec![
            split(r"\p{N}{1,3}"),
            split(DEEPSEEK3_CJK),
            split(DEEPSEEK3),
            byte_level(false),
        ],
        _ => return None,
    })
}
