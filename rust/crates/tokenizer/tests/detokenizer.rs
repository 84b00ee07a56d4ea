//! The detokenizer over a byte-level and a byte-fallback vocabulary of single bytes, cut at every place.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokenizer::{Detokenizer, Error, OpenOptions, TextTokenizer};

const TEXT: &str = "ďábel 🌶️ ok\n";

/// Token `b` stands for the byte `b`; token 256 is special.
fn byte_level() -> Arc<TextTokenizer> {
    let mut next = 0x100_u32;
    let mut vocab = Map::new();
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        vocab.insert(
            char::from_u32(code).expect("a character").to_string(),
            json!(byte),
        );
    }
    let stage =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    load(vocab, &stage)
}

/// Token `b` is the fallback token of the byte `b`; token 256 is special.
fn byte_fallback() -> Arc<TextTokenizer> {
    let vocab = (0..=255_u8)
        .map(|byte| (format!("<0x{byte:02X}>"), json!(byte)))
        .collect();
    let stages = json!([{"type": "ByteFallback"}, {"type": "Fuse"}]);
    load(vocab, &json!({"type": "Sequence", "decoders": stages}))
}

fn load(mut vocab: Map<String, Value>, decoder: &Value) -> Arc<TextTokenizer> {
    vocab.insert("<end>".to_owned(), json!(256));
    let content = json!({
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Arc::new(TextTokenizer::from_json(content.to_string().as_bytes()).expect("a valid tokenizer"))
}

fn ids(bytes: &[u8]) -> Vec<i32> {
    bytes.iter().map(|&byte| i32::from(byte)).collect()
}

fn joined(tokenizer: &Arc<TextTokenizer>, parts: &[&[i32]], options: &OpenOptions) -> String {
    let mut rows = Detokenizer::new(Arc::clone(tokenizer));
    let slot = rows.open(options).expect("valid options");
    let mut text = String::new();
    for part in parts {
        let step = rows
            .step(&[slot as i32], part, Some(&[0, part.len() as i32]))
            .expect("a valid step");
        text.push_str(step.texts().next().expect("one row").0);
    }
    text + &rows.finish(slot as i64).expect("an open slot")
}

#[test]
fn any_cut_gives_the_whole_decode() {
    for tokenizer in [byte_level(), byte_fallback()] {
        for bytes in [TEXT.as_bytes(), b"a\xF0\x9F\x8Cb\xFF", b"\xE2\x82", b""] {
            let all = ids(bytes);
            let unsigned: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte)).collect();
            let whole = tokenizer.decode(&unsigned, true).expect("ids in range");
            for at in 0..=all.len() {
                let (left, right) = all.split_at(at);
                assert_eq!(joined(&tokenizer, &[left, right], &OpenOptions::default()), whole);
            }
        }
    }
}

#[test]
fn a_character_that_the_prompt_began_is_shown() {
    let (left, right) = TEXT.as_bytes().split_at(1);
    let options = OpenOptions {
        prompt_ids: left.iter().map(|&byte| u32::from(byte)).collect(),
        ..OpenOptions::default()
    };
    assert_eq!(joined(&byte_level(), &[&ids(right)], &options), TEXT);
}

#[test]
fn special_tokens_are_skipped_and_can_stop() {
    let mut options = OpenOptions {
        skip_special_tokens: true,
        ..OpenOptions::default()
    };
    let all = [i32::from(b'a'), 256, i32::from(b'b')];
    assert_eq!(joined(&byte_level(), &[&all], &options), "ab");
    options.stop = vec!["<end>".to_owned()];
    assert_eq!(joined(&byte_level(), &[&all], &options), "a");
}

#[test]
fn a_bad_step_changes_nothing() {
    let tokenizer = byte_level();
    let mut rows = Detokenizer::new(tokenizer);
    let slot = rows.open(&OpenOptions::default()).expect("valid options");
    let bad = rows.step(&[slot as i32, slot as i32], &[97, 257], None);
    assert!(matches!(bad, Err(Error::InvalidArgument { field: "ids", .. })));
    let unknown = rows.step(&[slot as i32, 9], &[97, 98], None);
    assert!(matches!(
        unknown,
        Err(Error::InvalidArgument { field: "slots", .. })
    ));
    let good = rows.step(&[slot as i32], &[98], None).expect("a valid step");
    assert_eq!(good.texts().collect::<Vec<_>>(), [("b", Some(98))]);
    assert_eq!(rows.num_open(), 1);
    rows.close(slot as i64).expect("an open slot");
    assert!(rows.close(slot as i64).is_err());
}
