//! Owns which written pattern each scanner implements. A pattern is recognised by its exact text.

use super::{Cl100k, Class, ClassRun, O200k, Stage};
use crate::unicode::{LETTER, NEWLINE, NUMBER, PUNCTUATION};

const MOST: usize = usize::MAX;

/// GPT-2, where a file spells it out instead of asking for the byte-level default.
const GPT2: &[&str] = &[r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"];
/// Llama 3, GLM 4, Phi 4, cl100k: up to three numbers a piece.
const LLAMA3: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
];
/// cl100k as tiktoken writes it: white space at the end of the text is one piece. The library's engine reads
/// `{1,3}+` as a repetition of `{1,3}`, not as a possessive one, so numbers have no limit there.
const CL100K: &[&str] = &[
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
];
/// Qwen 2 to 3: one number a piece.
const QWEN2: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// Qwen 3.5 and 3.6: marks are letters.
const QWEN35: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// GPT-4o, gpt-oss, Llama 4.
const O200K: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// Tekken: no contractions, one number a piece.
const TEKKEN: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// DeepSeek V3 and V4, third step. The newlines in the file are characters, not escapes.
const DEEPSEEK_V3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// DeepSeek V3 and V4, second step: Chinese characters and kana.
const DEEPSEEK_V3_RANGES: &[(u32, u32)] = &[(0x4e00, 0x9fa5), (0x3040, 0x309f), (0x30a0, 0x30ff)];
/// DeepSeek Coder: Chinese, Japanese and Korean as it has them.
const DEEPSEEK_CODER_RANGES: &[(u32, u32)] = &[(0x4e00, 0x9fa5), (0x800, 0x4e00), (0xac00, 0xd7ff)];
const ASCII_DIGIT: &[(u32, u32)] = &[(0x30, 0x39)];

type Make = fn() -> Stage;

/// Patterns that leave gaps between their matches, each with its scanner.
const SIMPLE: &[(&str, Make)] = &[
    (DEEPSEEK_V3, || Stage::Deepseek),
    ("[一-龥\u{3040}-ゟ゠-ヿ]+", || ranges(DEEPSEEK_V3_RANGES)),
    ("[一-龥\u{800}-一가-\u{d7ff}]+", || {
        ranges(DEEPSEEK_CODER_RANGES)
    }),
    ("[\r\n]", || flags(NEWLINE, 1, false)),
    (r"[\r\n]", || flags(NEWLINE, 1, false)),
    (r"\s?\p{L}+", || flags(LETTER, MOST, true)),
    (r"\s?\p{P}+", || flags(PUNCTUATION, MOST, true)),
    (r"\p{N}", || flags(NUMBER, 1, false)),
    (r"\p{N}{1,3}", || flags(NUMBER, 3, false)),
    (r"\p{N}+", || flags(NUMBER, MOST, false)),
    ("[0-9][0-9][0-9]", three_digits),
];

/// The scanner of a pattern, and whether it covers every text without gaps.
pub(crate) fn recognise(pattern: &str) -> Option<(Stage, bool)> {
    let cl100k = |numbers, marks, whole_tail| {
        Stage::Cl100k(Cl100k {
            numbers,
            marks,
            whole_tail,
        })
    };
    let o200k = |numbers, contractions| {
        Stage::O200k(O200k {
            numbers,
            contractions,
        })
    };
    let covering = [
        (GPT2, Stage::Gpt2),
        (LLAMA3, cl100k(3, false, false)),
        (CL100K, cl100k(MOST, false, true)),
        (QWEN2, cl100k(1, false, false)),
        (QWEN35, cl100k(1, true, false)),
        (O200K, o200k(3, true)),
        (TEKKEN, o200k(1, false)),
    ];
    if let Some((_, stage)) = covering.into_iter().find(|(texts, _)| texts.contains(&pattern)) {
        return Some((stage, true));
    }
    let (_, stage) = SIMPLE.iter().find(|(text, _)| *text == pattern)?;
    Some((stage(), false))
}

fn flags(mask: u16, most: usize, space: bool) -> Stage {
    Stage::ClassRun(ClassRun {
        space,
        ..ClassRun::new(Class::Flags(mask), most)
    })
}

fn ranges(ranges: &'static [(u32, u32)]) -> Stage {
    Stage::ClassRun(ClassRun::new(Class::Ranges(ranges), MOST))
}

fn three_digits() -> Stage {
    Stage::ClassRun(ClassRun {
        least: 3,
        ..ClassRun::new(Class::Ranges(ASCII_DIGIT), 3)
    })
}

/// Every pattern text that a scanner stands for, for the tests.
#[cfg(test)]
pub(crate) fn all() -> Vec<&'static str> {
    let groups = [GPT2, LLAMA3, CL100K, QWEN2, QWEN35, O200K, TEKKEN];
    let covering = groups.into_iter().flatten().copied();
    covering.chain(SIMPLE.iter().map(|(text, _)| *text)).collect()
}
