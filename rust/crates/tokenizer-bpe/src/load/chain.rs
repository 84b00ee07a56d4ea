//! Owns reading `pre_tokenizer` into a chain of scanners.

use serde_json::Value;

use super::{flag, kind, list};
use crate::error::{Result, Unsupported};
use crate::scan::{Class, ClassRun, Stage, patterns};

/// How a text is cut into pieces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) stages: Vec<Stage>,
    /// Put a space before a segment that does not start with one.
    pub(crate) prefix_space: bool,
}

pub(super) fn read(pre_tokenizer: &Value) -> Result<Chain> {
    let single = [pre_tokenizer.clone()];
    let steps = match kind(pre_tokenizer) {
        "Sequence" => list(pre_tokenizer, "pretokenizers"),
        _ => &single,
    };
    let mut chain = Chain {
        stages: Vec::new(),
        prefix_space: false,
    };
    let mut mapped = false;
    for step in steps {
        if mapped {
            chain.stages.push(after_mapping(step)?);
        } else if kind(step) == "ByteLevel" {
            mapped = true;
            byte_level(step, &mut chain)?;
        } else {
            chain.stages.push(stage(step)?);
        }
    }
    if mapped {
        Ok(chain)
    } else {
        Err(unsupported("no byte-level step"))
    }
}

fn unsupported(reason: impl Into<String>) -> Unsupported {
    Unsupported::new("pre_tokenizer", reason)
}

fn byte_level(step: &Value, chain: &mut Chain) -> Result<()> {
    if flag(step, "add_prefix_space", true) {
        if !chain.stages.is_empty() {
            return Err(unsupported("a prefix space for every piece of an earlier step"));
        }
        chain.prefix_space = true;
    }
    if flag(step, "use_regex", true) {
        chain.stages.push(Stage::Gpt2);
    }
    Ok(())
}

/// A step before the bytes become characters of the alphabet.
fn stage(step: &Value) -> Result<Stage> {
    match kind(step) {
        "Split" => split(step),
        "Digits" => {
            let most = if flag(step, "individual_digits", false) {
                1
            } else {
                usize::MAX
            };
            Ok(Stage::ClassRun(ClassRun::new(Class::Numeric, most)))
        }
        "Punctuation" => {
            let most = match step["behavior"].as_str() {
                Some("Contiguous") => usize::MAX,
                Some("Isolated") | None => 1,
                Some(other) => return Err(unsupported(format!("Punctuation with the behaviour {other}"))),
            };
            Ok(Stage::ClassRun(ClassRun::new(Class::Punctuation, most)))
        }
        other => Err(unsupported(format!("a step of the type {other:?}"))),
    }
}

fn split(step: &Value) -> Result<Stage> {
    let pattern = step["pattern"]["Regex"]
        .as_str()
        .ok_or_else(|| unsupported("a Split by a plain string"))?;
    let (stage, covers) = patterns::recognise(pattern)
        .ok_or_else(|| unsupported(format!("no scanner for the pattern {pattern:?}")))?;
    match (step["behavior"].as_str(), flag(step, "invert", false)) {
        (Some("Isolated"), _) => Ok(stage),
        // Without gaps there is nothing to remove.
        (Some("Removed"), true) if covers => Ok(stage),
        (behavior, invert) => Err(unsupported(format!(
            "a Split with the behaviour {behavior:?}, invert {invert}"
        ))),
    }
}

/// A step behind the byte-level one sees written characters; only ASCII digits are the same in both.
fn after_mapping(step: &Value) -> Result<Stage> {
    let pattern = step["pattern"]["Regex"].as_str();
    if kind(step) == "Split" && pattern == Some("[0-9][0-9][0-9]") {
        return split(step);
    }
    Err(unsupported("a step behind the byte-level one"))
}
