//! Texts that make careless encoders slow or wrong: long pieces without any cut, many threads, deep caches.

use std::time::{Duration, Instant};

use serde_json::json;
use tokenizer_bpe::FastBpe;
use tokenizers::Tokenizer;

/// Bytes, and merges that chain: `aa`, `aaaa`, ... and alternating ones.
fn file() -> String {
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut letters: Vec<char> = alphabet.into_iter().collect();
    letters.sort_unstable();
    let mut tokens: Vec<String> = letters.into_iter().map(String::from).collect();
    let mut merges = Vec::new();
    let pairs = [
        ("a", "a"),
        ("b", "a"),
        ("a", "b"),
        ("aa", "aa"),
        ("ab", "ab"),
        ("aaaa", "aaaa"),
        ("ba", "ab"),
        ("Ġ", "Ġ"),
        ("ĠĠ", "ĠĠ"),
        ("aa", "b"),
        ("Ã", "©"),
        ("Ġ", "a"),
    ];
    for (left, right) in pairs {
        tokens.push(format!("{left}{right}"));
        merges.push(json!([left, right]));
    }
    let vocab: serde_json::Map<_, _> = tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
        "decoder": null, "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
    })
    .to_string()
}

fn library_ids(library: &Tokenizer, text: &str) -> Vec<u32> {
    library
        .encode(text, false)
        .expect("the library encodes")
        .get_ids()
        .to_vec()
}

#[test]
fn long_pieces_are_equal_and_not_quadratic() {
    let json = file();
    let (fast, library) = (
        FastBpe::from_json(&json).expect("supported"),
        json.parse::<Tokenizer>().expect("loads"),
    );
    for unit in ["a", "ab", "aab", "abba", " ", "é", "aé", "ba ab"] {
        for length in [63, 64, 65, 66, 127, 128, 129, 1000] {
            let text: String = unit.chars().cycle().take(length).collect();
            assert_eq!(
                fast.encode(&text, false),
                library_ids(&library, &text),
                "{unit:?} x {length}"
            );
        }
        let text = unit.repeat(100_000);
        let started = Instant::now();
        let ids = fast.encode(&text, false);
        // Quadratic work would take minutes.
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{unit:?}: {:?}",
            started.elapsed()
        );
        assert_eq!(ids, library_ids(&library, &text));
    }
}

#[test]
fn a_batch_equals_its_texts_on_any_number_of_threads() {
    let fast = FastBpe::from_json(&file()).expect("supported");
    let texts: Vec<String> = (0..200)
        .map(|at| "ab aab é ".repeat(at * 7 % 300) + &at.to_string())
        .collect();
    let alone: Vec<_> = texts.iter().map(|text| fast.encode(text, true)).collect();
    for threads in [0, 1, 2, 5, 64] {
        assert_eq!(fast.encode_batch(&texts, true, threads), alone);
    }
    assert!(fast.encode_batch(&Vec::<String>::new(), true, 4).is_empty());
}

#[test]
fn more_pieces_than_the_cache_holds_stay_right() {
    let json = file();
    let (fast, library) = (
        FastBpe::from_json(&json).expect("supported"),
        json.parse::<Tokenizer>().expect("loads"),
    );
    let letters = ['a', 'b', 'é', 'c'];
    let word = |mut number: usize, least: usize| {
        let mut word = String::new();
        while number > 0 || word.chars().count() < least {
            word.push(letters[number % 4]);
            number /= 4;
        }
        word
    };
    for least in [1, 12, 40] {
        let words: Vec<String> = (0..30_000).map(|number| word(number, least)).collect();
        let text = words.join(" ");
        for _ in 0..2 {
            assert_eq!(fast.encode(&text, false), library_ids(&library, &text));
        }
    }
}

#[test]
fn files_out_of_the_family_are_refused_with_a_reason() {
    let changed = |key: &str, value: serde_json::Value| {
        let mut json: serde_json::Value = serde_json::from_str(&file()).expect("JSON");
        let (part, field) = key.split_once('.').unwrap_or((key, ""));
        if field.is_empty() {
            json[part] = value;
        } else {
            json[part][field] = value;
        }
        match FastBpe::from_json(&json.to_string()) {
            Ok(_) => String::new(),
            Err(reason) => reason.field.to_owned(),
        }
    };
    let split = |pattern: &str, behavior: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let chain = |steps: Vec<serde_json::Value>| json!({"type": "Sequence", "pretokenizers": steps});
    assert_eq!(changed("version", json!("1.0")), "");
    for (key, value) in [
        ("model.type", json!("WordPiece")),
        ("model.dropout", json!(0.1)),
        ("model.end_of_word_suffix", json!("</w>")),
        ("model.continuing_subword_prefix", json!("##")),
        ("normalizer", json!({"type": "Lowercase"})),
        ("pre_tokenizer", json!(null)),
        ("pre_tokenizer", json!({"type": "Metaspace"})),
        (
            "pre_tokenizer",
            chain(vec![split(r"\w+", "Isolated"), bytes.clone()]),
        ),
        (
            "pre_tokenizer",
            chain(vec![split(r"\p{N}", "Removed"), bytes.clone()]),
        ),
        ("pre_tokenizer", chain(vec![split(r"\p{N}", "Isolated")])),
        (
            "post_processor",
            json!({"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}),
        ),
        ("truncation", json!({"max_length": 4})),
    ] {
        let field = changed(key, value.clone());
        assert_eq!(field, key.split('.').next().unwrap_or_default(), "{key} {value}");
    }
    assert!(FastBpe::from_json("{").is_err());
}
