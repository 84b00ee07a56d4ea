//! Owns reading a `tokenizer.json` into the parts of this crate, and saying why one is not of the family.

mod chain;
mod file;
mod model;
mod post;

use serde_json::Value;

pub(crate) use chain::Chain;
pub(crate) use file::AddedTokenEntry;

use crate::added::AddedTokens;
use crate::error::{Result, Unsupported};
use crate::model::Model;
use crate::normalize::Form;
use crate::post::PostStep;

/// A tokenizer in parts.
pub(crate) struct Parts {
    pub(crate) added: AddedTokens,
    pub(crate) form: Option<Form>,
    pub(crate) chain: Chain,
    pub(crate) model: Model,
    pub(crate) post: Vec<PostStep>,
}

/// Read a file. What the library would refuse may pass here: the caller loads it there as well.
pub(crate) fn read(json: &str) -> Result<Parts> {
    let file: file::File = serde_json::from_str(json)
        .map_err(|reason| Unsupported::new("tokenizer.json", reason.to_string()))?;
    if !file.truncation.is_null() || !file.padding.is_null() {
        return Err(Unsupported::new(
            "truncation",
            "truncation and padding are the library's",
        ));
    }
    let form = form(&file.normalizer)?;
    let chain = chain::read(&file.pre_tokenizer)?;
    let post = post::read(&file.post_processor)?;
    let ids = model::Ids::read(&file.model)?;
    let added = AddedTokens::new(&file.added_tokens, form, |content| ids.get(content), ids.len())?;
    let model = model::read(&file.model, &ids)?;
    Ok(Parts {
        added,
        form,
        chain,
        model,
        post,
    })
}

/// The normal form that a normalizer applies.
fn form(normalizer: &Value) -> Result<Option<Form>> {
    let unsupported = |kind: &str| Unsupported::new("normalizer", format!("{kind} is not a normal form"));
    if normalizer.is_null() {
        return Ok(None);
    }
    match kind(normalizer) {
        "NFC" => Ok(Some(Form::Nfc)),
        "NFD" => Ok(Some(Form::Nfd)),
        "NFKC" => Ok(Some(Form::Nfkc)),
        "NFKD" => Ok(Some(Form::Nfkd)),
        "Sequence" => match list(normalizer, "normalizers") {
            [] => Ok(None),
            [only] => form(only),
            _ => Err(unsupported("a sequence of several")),
        },
        other => Err(unsupported(other)),
    }
}

fn kind(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn flag(value: &Value, key: &str, default: bool) -> bool {
    value[key].as_bool().unwrap_or(default)
}
