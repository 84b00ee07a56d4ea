//! Owns reading `post_processor` into steps for one text.

use serde_json::Value;

use super::{flag, kind, list};
use crate::error::{Result, Unsupported};
use crate::post::{Ends, PostStep, SpecialToken};

fn unsupported(reason: impl Into<String>) -> Unsupported {
    Unsupported::new("post_processor", reason)
}

pub(super) fn read(post_processor: &Value) -> Result<Vec<PostStep>> {
    if post_processor.is_null() {
        return Ok(Vec::new());
    }
    match kind(post_processor) {
        "ByteLevel" if !flag(post_processor, "trim_offsets", true) => Ok(Vec::new()),
        "ByteLevel" => Ok(vec![PostStep::Trim {
            prefix_space: flag(post_processor, "add_prefix_space", true),
        }]),
        "TemplateProcessing" => Ok(vec![PostStep::Ends(ends(post_processor)?)]),
        "Sequence" => {
            let steps = list(post_processor, "processors").iter().map(read);
            Ok(steps.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        }
        other => Err(unsupported(format!("a step of the type {other:?}"))),
    }
}

/// The tokens that the template for one text puts before and after it.
fn ends(template: &Value) -> Result<Ends> {
    let (mut ends, mut seen) = (Ends::default(), false);
    for item in list(template, "single") {
        if let Some(name) = item["SpecialToken"]["id"].as_str() {
            let side = if seen { &mut ends.after } else { &mut ends.before };
            side.extend(special(&template["special_tokens"][name], name)?);
        } else if item["Sequence"]["id"] == "A" && !seen {
            seen = true;
        } else {
            return Err(unsupported(
                "a template with other parts than special tokens and one text",
            ));
        }
    }
    if seen {
        Ok(ends)
    } else {
        Err(unsupported("a template without the text"))
    }
}

fn special(entry: &Value, name: &str) -> Result<Vec<SpecialToken>> {
    let (ids, texts) = (list(entry, "ids"), list(entry, "tokens"));
    if ids.is_empty() || ids.len() != texts.len() {
        return Err(unsupported(format!("the special token {name:?} has no ids")));
    }
    let tokens = ids.iter().zip(texts).map(|(id, text)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        Some(SpecialToken::new(id?, text.as_str()?))
    });
    tokens
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| unsupported(format!("the special token {name:?} is malformed")))
}
