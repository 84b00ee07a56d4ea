//! Owns what tiktoken files of known content leave unsaid: patterns and special tokens, found by content hash.

use super::byte_level::NamedToken;

/// The pattern of cl100k and of Llama 3, as their `tokenizer.json` files write it.
pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of o200k, gpt-oss and Llama 4.
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of Qwen 1 to 3.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of Qwen 3.5 and 3.6: marks belong to words.
pub(crate) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of GPT-2 and GPT-3.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What goes with a file of known content.
pub(super) struct KnownRanks {
    pub(super) pattern: &'static str,
    pub(super) tokens: Vec<NamedToken>,
    pub(super) nfc: bool,
    pub(super) bos: Option<&'static str>,
    pub(super) adds_bos: bool,
    pub(super) pad: Option<&'static str>,
    /// The tokens that end a text or a turn; the first is the end of sequence.
    pub(super) ends: &'static [&'static str],
}

/// BLAKE3 of a whole file, and what goes with it.
type Entry = (&'static str, fn() -> KnownRanks);

const KNOWN: [Entry; 7] = [
    (
        "65afa6a4947e558c7e52ca1dc682285a6aff053a60ce9ba951bf154da0cb980f",
        cl100k,
    ),
    (
        "77500c1d2b9e0f606d2ab99ff39e9ebaed9221b4531c6d83a503c36def0b8be8",
        o200k,
    ),
    (
        "d698d47c87c56af122ed68f3e74e06e3bd122a8cc66472a52d760012c6ea9100",
        p50k,
    ),
    (
        "18ccd965a0a1d18e354230d63b9463c57418909feeb822be68b8bf8d496be9da",
        llama3,
    ),
    (
        "b7723034cb7193b7d6d549a40a2d9026c81c11258be0c9a6de0666b192766273",
        llama4,
    ),
    (
        "6d8cbc295dd0e4dd91c7e4c071e8417aa0d2c5f78d89a38853b10dd516ebbca9",
        qwen3,
    ),
    (
        "1ec5b3c6afbe8e75a3dab5b77762bf5eeb1450e49403718365a2bc68ad5546fc",
        qwen36,
    ),
];

/// What goes with the file that holds `content`, where that is known.
pub(super) fn find(content: &[u8]) -> Option<KnownRanks> {
    let hash = blake3::hash(content).to_hex();
    KNOWN
        .iter()
        .find(|(known, _)| *known == hash.as_str())
        .map(|(_, facts)| facts())
}

fn special(content: impl Into<String>, id: u32) -> NamedToken {
    NamedToken {
        content: content.into(),
        id,
        special: true,
    }
}

fn numbered<T: Into<String>>(texts: impl IntoIterator<Item = T>, start: u32) -> Vec<NamedToken> {
    texts
        .into_iter()
        .zip(start..)
        .map(|(text, id)| special(text, id))
        .collect()
}

fn openai(pattern: &'static str, tokens: &[(&str, u32)]) -> KnownRanks {
    KnownRanks {
        pattern,
        tokens: tokens.iter().map(|&(text, id)| special(text, id)).collect(),
        nfc: false,
        bos: None,
        adds_bos: false,
        pad: None,
        ends: &["<|endoftext|>"],
    }
}

fn cl100k() -> KnownRanks {
    let fim = [
        ("<|fim_prefix|>", 100_258),
        ("<|fim_middle|>", 100_259),
        ("<|fim_suffix|>", 100_260),
    ];
    let mut known = openai(
        CL100K,
        &[("<|endoftext|>", 100_257), ("<|endofprompt|>", 100_276)],
    );
    known.tokens.extend(fim.map(|(text, id)| special(text, id)));
    known
}

fn o200k() -> KnownRanks {
    openai(O200K, &[("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)])
}

fn p50k() -> KnownRanks {
    openai(GPT2, &[("<|endoftext|>", 50_256)])
}

/// The names are those of Llama 3.1 and later, which include the ones of 3.0.
fn llama3() -> KnownRanks {
    let mut reserved = 0..;
    let names = (0..256).map(|at| match at {
        0 => "<|begin_of_text|>".to_owned(),
        1 => "<|end_of_text|>".to_owned(),
        4 => "<|finetune_right_pad_id|>".to_owned(),
        6 => "<|start_header_id|>".to_owned(),
        7 => "<|end_header_id|>".to_owned(),
        8 => "<|eom_id|>".to_owned(),
        9 => "<|eot_id|>".to_owned(),
        10 => "<|python_tag|>".to_owned(),
        _ => format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or(0)),
    });
    KnownRanks {
        pattern: CL100K,
        tokens: numbered(names, 128_000),
        nfc: false,
        bos: Some("<|begin_of_text|>"),
        adds_bos: true,
        pad: Some("<|finetune_right_pad_id|>"),
        ends: &["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
    }
}

fn llama4() -> KnownRanks {
    let block = |kind: &str, numbers: std::ops::Range<u32>| -> Vec<String> {
        numbers
            .map(|number| format!("<|{kind}reserved_special_token_{number}|>"))
            .collect()
    };
    let names = |names: &[&str]| -> Vec<String> { names.iter().map(|name| format!("<|{name}|>")).collect() };
    let texts = [
        names(&[
            "begin_of_text",
            "end_of_text",
            "fim_prefix",
            "fim_middle",
            "fim_suffix",
        ]),
        names(&["header_start", "header_end", "eom", "eot", "step"]),
        block("text_post_train_", 0..6),
        names(&["python_start", "python_end", "finetune_right_pad"]),
        block("text_post_train_", 8..69),
        names(&["image_start", "image_end"]),
        block("vision_", 0..2),
        names(&["tile_x_separator", "tile_y_separator"]),
        block("vision_", 2..6),
        names(&["image"]),
        block("vision_", 6..7),
        names(&["patch"]),
        block("vision_", 7..1048),
        block("reasoning_", 0..8),
        names(&["reasoning_thinking_start", "reasoning_thinking_end"]),
        block("", 0..904),
    ];
    KnownRanks {
        pattern: O200K,
        tokens: numbered(texts.into_iter().flatten(), 200_000),
        nfc: false,
        bos: Some("<|begin_of_text|>"),
        adds_bos: true,
        pad: Some("<|finetune_right_pad|>"),
        ends: &["<|end_of_text|>", "<|eom|>", "<|eot|>"],
    }
}

const QWEN_SPECIAL: [&str; 14] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
];
/// Added, but shown in decoded text.
const QWEN_SHOWN: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];
const QWEN36_MORE: [&str; 7] = [
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
];

fn qwen(pattern: &'static str, start: u32, nfc: bool, more: &[&'static str]) -> KnownRanks {
    let texts = QWEN_SPECIAL.iter().chain(&QWEN_SHOWN).chain(more).copied();
    let mut tokens = numbered(texts, start);
    for token in &mut tokens {
        token.special = !QWEN_SHOWN.contains(&token.content.as_str());
    }
    KnownRanks {
        pattern,
        tokens,
        nfc,
        bos: None,
        adds_bos: false,
        pad: Some("<|endoftext|>"),
        ends: &["<|im_end|>", "<|endoftext|>"],
    }
}

/// Qwen 1 to 3 share the ranks; the added tokens are those of Qwen 3, which include the ones of Qwen 2 and 2.5.
fn qwen3() -> KnownRanks {
    qwen(QWEN2, 151_643, true, &[])
}

fn qwen36() -> KnownRanks {
    qwen(QWEN35, 248_044, false, &QWEN36_MORE)
}
