//! Owns byte-level BPE vocabularies of GGUF files (`gpt2`). Knows nothing of the file format.

use serde_json::{Value as Json, json};

use super::keys::Keys;
use super::pre_tokenizers;
use super::vocabulary::{Plan, Vocabulary};
use crate::error::{Error, Result};

/// The plan of a `gpt2` vocabulary.
pub(super) fn plan(keys: &Keys<'_>, vocabulary: &Vocabulary<'_>) -> Result<Plan> {
    let name = keys.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = pre_tokenizers::named(name).ok_or_else(|| {
        Error::File(format!(
            "the pre-tokenizer {name:?} (tokenizer.ggml.pre) is not supported"
        ))
    })?;
    let merges = merges(keys)?;
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": pre.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.stages},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges, "vocab": vocabulary.ids(), "merges": merges,
        },
    });
    Ok(Plan::new(json, pre.adds_bos))
}

/// The pairs of `tokenizer.ggml.merges`.
pub(super) fn merges(keys: &Keys<'_>) -> Result<Vec<Json>> {
    let merges = keys
        .texts("tokenizer.ggml.merges")?
        .ok_or_else(|| Error::File("the GGUF file has no tokenizer.ggml.merges".to_owned()))?;
    merges
        .iter()
        .map(|merge| {
            // The separator is the first space that is not the merge's own first character.
            let at = merge
                .char_indices()
                .skip(1)
                .find(|(_, character)| *character == ' ');
            at.map(|(at, _)| json!([merge[..at], merge[at + 1..]]))
                .ok_or_else(|| {
                    Error::File(format!(
                        "corrupt GGUF metadata: {merge:?} in tokenizer.ggml.merges is no pair"
                    ))
                })
        })
        .collect()
}
