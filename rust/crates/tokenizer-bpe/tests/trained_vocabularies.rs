//! Compares the fast path with the library over small vocabularies trained here, through every pre-tokenizer,
//! normal form, kind of added token and post-processor.

mod common;

use common::{Pair, hard_text};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{AddedToken, Tokenizer};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
const CORPUS: &str = include_str!("trained_vocabularies.rs");
const WORDS: &str = "the theory of there and then; helloWorld HELLO Hello hello's don't we'll 1234 12 3.14 中文字中文 日本かなカナ 한국어 \
    é e\u{301} É naïve café हिन्दी ไทย العربية 😀😀 👩\u{200d}👧 \r\n\r\n\t\t    if (x == y) { return z; } // end\n    aaaa aaaaaaaa";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(prefix: bool, regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex})
}

fn chain(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn pre_tokenizers() -> Vec<(&'static str, Value)> {
    let removed =
        json!({"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Removed", "invert": true});
    let digits = |each: bool| json!({"type": "Digits", "individual_digits": each});
    let punctuation = json!({"type": "Punctuation", "behavior": "Contiguous"});
    vec![
        ("gpt2", byte_level(false, true)),
        ("gpt2 with a space", byte_level(true, true)),
        ("bytes alone", byte_level(false, false)),
        ("llama3", chain(&[split(LLAMA3), byte_level(false, false)])),
        ("qwen3.5", chain(&[split(QWEN35), byte_level(false, false)])),
        ("o200k", chain(&[split(O200K), byte_level(false, false)])),
        ("o200k removed", chain(&[removed, byte_level(false, false)])),
        ("starcoder", chain(&[digits(true), byte_level(false, true)])),
        ("digits in runs", chain(&[digits(false), byte_level(false, true)])),
        (
            "falcon",
            chain(&[punctuation, byte_level(false, true), split("[0-9][0-9][0-9]")]),
        ),
        (
            "deepseek v3",
            chain(&[
                split(r"\p{N}{1,3}"),
                split("[一-龥\u{3040}-ゟ゠-ヿ]+"),
                split(DEEPSEEK),
                byte_level(false, false),
            ]),
        ),
        (
            "deepseek coder",
            chain(&[
                split("[\r\n]"),
                split(r"\s?\p{L}+"),
                split(r"\s?\p{P}+"),
                split("[一-龥\u{800}-一가-\u{d7ff}]+"),
                split(r"\p{N}"),
                byte_level(false, false),
            ]),
        ),
    ]
}

fn added() -> Vec<AddedToken> {
    let token = |text: &str, special| AddedToken::from(text, special);
    vec![
        token("<|end|>", true),
        token("<|end|>x", true),
        token("<mask>", true).lstrip(true),
        token("<right>", true).rstrip(true),
        token("<both>", false).lstrip(true).rstrip(true),
        token("word", false).single_word(true),
        token("wor", false)
            .normalized(false)
            .single_word(true)
            .lstrip(true),
        token("e\u{301}e\u{301}", false).normalized(true),
        token("  ", false).normalized(false),
        token("中文", false),
    ]
}

/// A file with a vocabulary of about `size` tokens. Without `alphabet` some bytes have no token.
fn train(pre_tokenizer: &Value, size: usize, alphabet: bool) -> Value {
    let bare = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    });
    let mut tokenizer: Tokenizer = bare.to_string().parse().expect("the library loads the file");
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(size)
        .min_frequency(1);
    if alphabet {
        let letters = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        trainer = trainer.initial_alphabet(letters.into_iter().collect());
    }
    let texts = CORPUS
        .lines()
        .chain(std::iter::repeat_n(WORDS, 4))
        .chain(WORDS.split(' '));
    let mut model = BPE::default();
    let mut trainer = trainer.build();
    let cut = |text: &str| {
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        let step = tokenizer.get_pre_tokenizer().expect("the file has one");
        tokenizers::PreTokenizer::pre_tokenize(step, &mut pieces)?;
        let splits = pieces.get_splits(
            tokenizers::OffsetReferential::Original,
            tokenizers::OffsetType::None,
        );
        Ok(splits.into_iter().map(|(piece, _, _)| piece.to_owned()).collect())
    };
    tokenizers::Trainer::feed(&mut trainer, texts, cut).expect("the trainer takes the texts");
    tokenizers::Trainer::train(&trainer, &mut model).expect("the trainer makes a vocabulary");
    tokenizer.with_model(model);
    tokenizer.add_tokens(added()).expect("the tokens can be added");
    let text = tokenizer.to_string(false).expect("the library writes the file");
    serde_json::from_str(&text).expect("what the library writes is JSON")
}

fn template() -> Value {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let entry = |id: &str, ids: &[u32], tokens: &[&str]| json!({"id": id, "ids": ids, "tokens": tokens});
    json!({
        "type": "TemplateProcessing", "single": [special("[A]"), text, special("[B]")],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[A]": entry("[A]", &[1], &["[A]"]), "[B]": entry("[B]", &[2, 3], &[" b", "c "])},
    })
}

fn check(json: &Value, seed: u8, cases: usize) {
    check_pair(&Pair::load(&json.to_string()), seed, cases);
}

fn check_pair(pair: &Pair, seed: u8, cases: usize) {
    let specials = added().into_iter().map(|token| token.content).collect();
    let strategy = hard_text(specials);
    let mut runner = TestRunner::new_with_rng(
        proptest::test_runner::Config::default(),
        proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[seed; 32]),
    );
    pair.check("").unwrap_or_else(|reason| panic!("{reason}"));
    pair.check(WORDS).unwrap_or_else(|reason| panic!("{reason}"));
    for _ in 0..cases {
        let text = strategy.new_tree(&mut runner).expect("a text").current();
        pair.check(&text).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

#[test]
fn every_pre_tokenizer_encodes_as_the_library_does() {
    for (seed, (name, pre_tokenizer)) in pre_tokenizers().into_iter().enumerate() {
        eprintln!("{name}");
        let mut file = train(&pre_tokenizer, 700, true);
        check(&file, seed as u8, 2500);
        file["model"]["ignore_merges"] = json!(true);
        check(&file, 100 + seed as u8, 1000);
    }
}

#[test]
fn every_normal_form_gives_the_library_s_offsets() {
    let pre_tokenizers = [
        byte_level(false, true),
        byte_level(true, true),
        chain(&[split(LLAMA3), byte_level(false, false)]),
    ];
    for (seed, form) in ["NFC", "NFD", "NFKC", "NFKD"].into_iter().enumerate() {
        for (other, pre_tokenizer) in pre_tokenizers.iter().enumerate() {
            let mut file = train(pre_tokenizer, 600, true);
            file["normalizer"] = json!({"type": form});
            check(&file, (seed * 3 + other) as u8, 2000);
        }
    }
}

#[test]
fn every_post_processor_gives_the_library_s_tokens() {
    let trim = |prefix: bool, trim: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": true});
    let several = |steps: &[Value]| json!({"type": "Sequence", "processors": steps});
    let steps = [
        trim(true, true),
        trim(false, true),
        trim(true, false),
        template(),
        several(&[trim(true, true), template()]),
        several(&[template(), trim(true, true)]),
    ];
    for (seed, post_processor) in steps.into_iter().enumerate() {
        for prefix in [false, true] {
            let mut file = train(&byte_level(prefix, true), 600, true);
            file["post_processor"] = post_processor.clone();
            check(&file, seed as u8 * 2 + u8::from(prefix), 1000);
        }
    }
}

#[test]
fn bytes_without_a_token_are_left_out_as_in_the_library() {
    let pre_tokenizers = [
        byte_level(false, true),
        chain(&[split(O200K), byte_level(false, false)]),
    ];
    for (seed, pre_tokenizer) in pre_tokenizers.iter().enumerate() {
        check(&train(pre_tokenizer, 400, false), seed as u8, 4000);
    }
}

#[test]
fn special_tokens_are_ignored_as_in_the_library() {
    let file = train(&byte_level(false, true), 600, true);
    check_pair(&Pair::load(&file.to_string()).ignoring_special_tokens(), 7, 3000);
}
