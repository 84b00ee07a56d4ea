//! Owns the reason why a tokenizer does not take the fast path.

/// A `tokenizer.json` that this crate does not encode. The reason names the part of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Unsupported {
    /// The part of the file, e.g. `pre_tokenizer`.
    pub field: &'static str,
    /// What in it is out of the supported family.
    pub reason: String,
}

impl Unsupported {
    pub(crate) fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self {
            field,
            reason: reason.into(),
        }
    }
}

/// The result of loading.
pub(crate) type Result<T> = std::result::Result<T, Unsupported>;
