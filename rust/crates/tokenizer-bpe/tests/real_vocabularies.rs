//! Compares the fast path with the library over real vocabularies. Needs files: `TOKENIZER_BPE_ASSETS` names a
//! folder that is searched for `tokenizer.json` files and may hold `*.txt` and source files as a corpus.

mod common;

use std::path::{Path, PathBuf};

use common::{Pair, hard_text};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn numbers() -> usize {
    std::env::var("TOKENIZER_BPE_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2000)
}

#[test]
#[ignore = "needs TOKENIZER_BPE_ASSETS"]
fn real_vocabularies_encode_as_the_library_does() {
    let folder = std::env::var("TOKENIZER_BPE_ASSETS").expect("TOKENIZER_BPE_ASSETS names a folder");
    let only = std::env::var("TOKENIZER_BPE_ONLY").unwrap_or_default();
    let (mut paths, mut corpus) = (Vec::new(), Vec::new());
    files(Path::new(&folder), &mut paths);
    paths.sort();
    for path in &paths {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or("");
        if matches!(kind, "txt" | "py" | "rs" | "md" | "inp") {
            corpus.push(String::from_utf8_lossy(&std::fs::read(path).expect("a readable file")).into_owned());
        }
    }
    let mut failures = Vec::new();
    for path in paths.iter().filter(|path| path.ends_with("tokenizer.json")) {
        if !path.to_string_lossy().contains(&only) {
            continue;
        }
        let json = std::fs::read_to_string(path).expect("a readable file");
        let started = std::time::Instant::now();
        if let Err(reason) = tokenizer_bpe::FastBpe::from_json(&json) {
            eprintln!("{}: library: {reason:.200}", path.display());
            continue;
        }
        let loading = started.elapsed();
        match compare(&json, &corpus) {
            Ok(count) => eprintln!("{}: {count} texts equal, loaded in {loading:?}", path.display()),
            Err(reason) => {
                eprintln!("{}: {reason:.3000}", path.display());
                failures.push(path.display().to_string());
            }
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}

fn compare(json: &str, corpus: &[String]) -> Result<usize, String> {
    let pair = Pair::load(json);
    let specials: Vec<String> = pair
        .library
        .get_added_tokens_decoder()
        .values()
        .map(|token| token.content.clone())
        .collect();
    let mut count = 0;
    for text in corpus {
        pair.check(text)?;
        count += 1;
    }
    let strategy = hard_text(specials);
    let mut runner = TestRunner::deterministic();
    for _ in 0..numbers() {
        let tree = strategy
            .new_tree(&mut runner)
            .map_err(|reason| reason.to_string())?;
        pair.check(&tree.current())?;
        count += 1;
    }
    for letter in "a .中\u{301}1".chars() {
        pair.check(&letter.to_string().repeat(20_000))?;
    }
    Ok(count)
}
