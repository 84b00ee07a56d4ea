//! Compares every scanner with the pattern it stands for, run by the regex engine of the `tokenizers` library.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::utils::SysRegex;
use tokenizers::{OffsetReferential, OffsetType, SplitDelimiterBehavior};
use tokenizers::{PreTokenizedString, PreTokenizer, pre_tokenizers::digits::Digits};

use super::{Class, ClassRun, Stage, cut, patterns};
use crate::unicode::classes;

/// An unoptimised build is some ten times slower.
const NUM_TEXTS: usize = if cfg!(debug_assertions) { 6_000 } else { 60_000 };
const SAMPLE_EVERY: u32 = if cfg!(debug_assertions) { 997 } else { 97 };

type Pieces = Vec<(usize, usize)>;

fn ours(stage: &Stage, text: &str) -> Pieces {
    let mut pieces = Vec::new();
    cut(std::slice::from_ref(stage), text, |start, end| {
        pieces.push((start, end));
    });
    pieces
}

/// Matches of the pattern, and what lies between them.
fn theirs(regex: &SysRegex, text: &str) -> Pieces {
    let (mut pieces, mut done) = (Vec::new(), 0);
    for (start, end) in regex.find_iter(text) {
        pieces.extend((done < start).then_some((done, start)));
        pieces.push((start, end));
        done = end;
    }
    pieces.extend((done < text.len()).then_some((done, text.len())));
    pieces
}

fn step(step: &impl PreTokenizer, text: &str) -> Pieces {
    let mut pieces = PreTokenizedString::from(text);
    step.pre_tokenize(&mut pieces).expect("a step that cannot fail");
    let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    splits.into_iter().map(|(_, offsets, _)| offsets).collect()
}

fn stage_of(pattern: &str) -> Stage {
    patterns::recognise(pattern).expect("a known pattern").0
}

/// One text in which the character meets what the patterns tell apart.
fn contexts(letter: char) -> String {
    let c = letter;
    format!(
        "{c}a{c}{c} {c}1{c}  {c}.{c}\n{c}A{c}\t{c}'{c}e'{c}l {c}\n \n{c}{c}{c}{c}/中{c}12{c}34 's{c}\u{301}{c}$a{c} é{c}Aa'{c}  "
    )
}

/// Every character up to the end of the kana, both sides of every change of class, and a sample of the rest.
fn sampled() -> impl Iterator<Item = char> {
    let flags = |code: u32| classes().of_code(code);
    let all = std::env::var("TOKENIZER_BPE_ALL_CHARS").is_ok();
    (0..0x11_0000_u32)
        .filter(move |&code| {
            let edge = code > 0
                && (flags(code) != flags(code - 1) || flags(code) != flags((code + 1).min(0x10_ffff)));
            all || code < 0x700 || edge || code % SAMPLE_EVERY == 0
        })
        .filter_map(char::from_u32)
}

fn hard_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        6 => proptest::sample::select(vec![
            " ", "  ", "\n", "\r", "\r\n", "\t", "\u{b}", "\u{85}", "\u{a0}", "\u{2028}", "\u{3000}", "a", "B", "ab", "Ab", "aB", "é", "É",
            "ʰ", "ª", "ǅ", "中", "か", "한", "\u{301}", "\u{345}", "'", "'s", "'S", "'ſ", "'ll", "'Ll", "'re", "'VE", "'d", "'M", "1", "12",
            "٣", "½", "²", ".", "/", "_", "$", "+", "«", "。", "😀", "\u{200d}", "\u{fe0f}", "\0", "\u{ad}", "\u{378}", "\u{e000}", "\u{10ffff}",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[ -~]",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

#[test]
fn every_scanner_cuts_each_character_as_its_pattern_does() {
    let stages: Vec<_> = (patterns::all().into_iter())
        .map(|pattern| {
            (
                pattern,
                SysRegex::new(pattern).expect("a pattern of the library's"),
                stage_of(pattern),
            )
        })
        .collect();
    for letter in sampled() {
        let text = contexts(letter);
        for (pattern, regex, stage) in &stages {
            assert_eq!(
                ours(stage, &text),
                theirs(regex, &text),
                "U+{:04X} {pattern:?} {text:?}",
                letter as u32
            );
        }
    }
}

#[test]
fn every_scanner_cuts_random_texts_as_its_pattern_does() {
    let stages: Vec<_> = (patterns::all().into_iter())
        .map(|pattern| {
            (
                pattern,
                SysRegex::new(pattern).expect("a pattern of the library's"),
                stage_of(pattern),
            )
        })
        .collect();
    let (strategy, mut runner) = (hard_text(), TestRunner::deterministic());
    for _ in 0..NUM_TEXTS {
        let text = strategy.new_tree(&mut runner).expect("a text").current();
        for (pattern, regex, stage) in &stages {
            assert_eq!(ours(stage, &text), theirs(regex, &text), "{pattern:?} {text:?}");
        }
    }
}

#[test]
fn digits_and_punctuation_are_the_library_s() {
    let run = |class: Class, most| Stage::ClassRun(ClassRun::new(class, most));
    for letter in sampled() {
        let text = contexts(letter);
        let place = format!("U+{:04X}", letter as u32);
        assert_eq!(
            ours(&run(Class::Numeric, 1), &text),
            step(&Digits::new(true), &text),
            "{place}"
        );
        assert_eq!(
            ours(&run(Class::Numeric, usize::MAX), &text),
            step(&Digits::new(false), &text),
            "{place}"
        );
        for (most, behavior) in [
            (1, SplitDelimiterBehavior::Isolated),
            (usize::MAX, SplitDelimiterBehavior::Contiguous),
        ] {
            let expected = step(&Punctuation::new(behavior), &text);
            assert_eq!(ours(&run(Class::Punctuation, most), &text), expected, "{place}");
        }
    }
}

#[test]
fn a_changed_pattern_is_not_recognised() {
    for pattern in patterns::all() {
        assert!(patterns::recognise(&format!("{pattern}|x")).is_none());
        let cut = &pattern[..pattern.len() - 1];
        assert_ne!(patterns::recognise(cut), patterns::recognise(pattern));
    }
    for pattern in [
        "[^a]+", r"[\w]+", "[a-]+", "[-a]+", "[z-a]+", "[]+", "[a&&b]+", "[[a]]+", "[a b]+", "[a]*",
    ] {
        assert!(patterns::recognise(pattern).is_none(), "{pattern}");
    }
    let newlines = patterns::all()
        .iter()
        .map(|pattern| pattern.replace(r"\r", "\r").replace(r"\n", "\n"))
        .collect::<Vec<_>>();
    for (written, pattern) in newlines.iter().zip(patterns::all()) {
        assert_eq!(patterns::recognise(written), patterns::recognise(pattern));
    }
}
