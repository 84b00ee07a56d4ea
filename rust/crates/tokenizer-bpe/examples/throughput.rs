//! Megabytes a second of the fast path on one thread, next to the library's: `throughput TOKENIZER.json TEXT...`
#![allow(clippy::print_stdout)]

use tokenizer_bpe::FastBpe;
use tokenizers::Tokenizer;

/// Seconds that this thread ran on a processor: what others do on the machine does not count.
fn now() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    nanoseconds.unwrap_or_default() / 1e9
}

/// The best of several runs over the texts, in MB/s.
fn best(texts: &[String], mut encode: impl FnMut(&str) -> usize) -> f64 {
    let bytes: usize = texts.iter().map(String::len).sum();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let started = now();
        let tokens: usize = texts.iter().map(|text| encode(text)).sum();
        assert!(tokens > 0);
        best = best.min(now() - started);
    }
    bytes as f64 / best / 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let json = std::fs::read_to_string(arguments.next().ok_or("TOKENIZER.json is missing")?)?;
    let texts: Vec<String> = arguments
        .map(|path| Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned()))
        .collect::<std::io::Result<_>>()?;
    let started = now();
    let fast = FastBpe::from_json(&json)?;
    println!("load    {:>8.1} ms", (now() - started) * 1e3);
    let started = now();
    let cold: usize = texts.iter().map(|text| fast.encode(text, true).len()).sum();
    println!("cold    {:>8.1} ms, {cold} tokens", (now() - started) * 1e3);
    let (ids, offsets) = (
        best(&texts, |text| fast.encode(text, true).len()),
        best(&texts, |text| fast.encode_with_offsets(text, true).0.len()),
    );
    println!("ids     {ids:>8.1} MB/s\noffsets {offsets:>8.1} MB/s");
    if std::env::var("THROUGHPUT_LIBRARY").is_ok() {
        let library: Tokenizer = json.parse().map_err(|reason| format!("{reason}"))?;
        let theirs = best(&texts, |text| {
            library.encode_fast(text, true).map_or(0, |found| found.len())
        });
        println!("library {theirs:>8.1} MB/s, ratio {:.1}", ids / theirs);
    }
    Ok(())
}
