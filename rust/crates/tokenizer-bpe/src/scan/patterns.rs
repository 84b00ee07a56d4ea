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
/// Seed Coder: as Qwen 2, but newlines stand apart from signs.
const SEED_CODER: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// DeepSeek V3 and V4, third step.
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

type Make = fn() -> Stage;

/// Patterns that leave gaps between their matches, each with its scanner.
const SIMPLE: &[(&str, Make)] = &[
    (DEEPSEEK_V3, || Stage::Deepseek),
    (r"\s+$", || Stage::LineTail),
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
    let pattern = &escaped(pattern);
    let cl100k = |numbers, marks, lines, whole_tail| {
        Stage::Cl100k(Cl100k {
            numbers,
            marks,
            lines,
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
        (LLAMA3, cl100k(3, false, true, false)),
        (CL100K, cl100k(MOST, false, true, true)),
        (QWEN2, cl100k(1, false, true, false)),
        (QWEN35, cl100k(1, true, true, false)),
        (SEED_CODER, cl100k(1, false, false, false)),
        (O200K, o200k(3, true)),
        (TEKKEN, o200k(1, false)),
    ];
    if let Some((_, stage)) = covering
        .into_iter()
        .find(|(texts, _)| texts.contains(&pattern.as_str()))
    {
        return Some((stage, true));
    }
    if let Some((_, stage)) = SIMPLE.iter().find(|(text, _)| text == pattern) {
        return Some((stage(), false));
    }
    Some((run_of_ranges(pattern)?, false))
}

/// The pattern with its newlines written as escapes: files have them either way.
fn escaped(pattern: &str) -> String {
    pattern.replace('\r', r"\r").replace('\n', r"\n")
}

/// `[...]+` of plain characters and ranges, where asked with `\s?` before: DeepSeek's scripts, letters and signs.
fn run_of_ranges(pattern: &str) -> Option<Stage> {
    let (space, class) = match pattern.strip_prefix(r"\s?") {
        Some(class) => (true, class),
        None => (false, pattern),
    };
    let body = class.strip_prefix('[')?.strip_suffix("]+")?;
    // Anything that could mean more than itself inside brackets is left to the library.
    if body.is_empty() || body.starts_with('-') || body.contains(['[', ']', '\\', '^', '&', ' ']) {
        return None;
    }
    let (mut ranges, mut letters) = (Vec::new(), body.chars().peekable());
    while let Some(low) = letters.next() {
        let mut high = low;
        if letters.next_if_eq(&'-').is_some() {
            high = letters.next()?;
        }
        if low > high {
            return None;
        }
        ranges.push((low as u32, high as u32));
    }
    let class = Class::Ranges(ranges.into());
    Some(Stage::ClassRun(ClassRun {
        space,
        ..ClassRun::new(class, MOST)
    }))
}

fn flags(mask: u16, most: usize, space: bool) -> Stage {
    Stage::ClassRun(ClassRun {
        space,
        ..ClassRun::new(Class::Flags(mask), most)
    })
}

fn three_digits() -> Stage {
    Stage::ClassRun(ClassRun {
        least: 3,
        ..ClassRun::new(Class::Ranges([(0x30, 0x39)].into()), 3)
    })
}

/// Patterns for the tests: every text above, and runs of ranges as files have them.
#[cfg(test)]
pub(crate) fn all() -> Vec<&'static str> {
    let groups = [GPT2, LLAMA3, CL100K, QWEN2, QWEN35, SEED_CODER, O200K, TEKKEN];
    let covering = groups.into_iter().flatten().copied();
    let simple = SIMPLE.iter().map(|(text, _)| *text);
    covering.chain(simple).chain(RUNS.iter().copied()).collect()
}

#[cfg(test)]
const RUNS: &[&str] = &[
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[一-龥\u{800}-一가-\u{d7ff}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
];
