//! Owns typed access to GGUF metadata. Knows nothing of what the keys mean.

use super::metadata::{Metadata, Value};
use crate::error::{Error, Result};

/// Typed access to the metadata; a value of another type is an error that names the key.
pub(super) struct Keys<'a>(pub(super) &'a Metadata);

impl<'a> Keys<'a> {
    pub(super) fn wrong(key: &str, wanted: &str) -> Error {
        Error::File(format!("corrupt GGUF metadata: {key} is not {wanted}"))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(Self::wrong(key, "a text")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Self::wrong(key, "a truth value")),
        }
    }

    pub(super) fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        pick: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let list = match self.0.get(key) {
            None => return Ok(None),
            Some(Value::List(list)) => list,
            Some(_) => return Err(Self::wrong(key, "a list")),
        };
        let picked: Option<Vec<T>> = list.iter().map(pick).collect();
        picked.map(Some).ok_or_else(|| Self::wrong(key, wanted))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.list(key, "a list of texts", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The id of a token.
    pub(super) fn id(&self, key: &str, vocab_size: usize) -> Result<Option<usize>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(&Value::Int(id)) if (0..vocab_size as i128).contains(&id) => Ok(Some(id as usize)),
            Some(Value::Int(id)) => Err(Error::File(format!(
                "corrupt GGUF metadata: {key} is {id}, the vocabulary has {vocab_size} tokens"
            ))),
            Some(_) => Err(Self::wrong(key, "an integer")),
        }
    }

    /// A list of numbers, one for each token.
    pub(super) fn scores(&self, tokens: usize) -> Result<Vec<f64>> {
        let key = "tokenizer.ggml.scores";
        let scores = self.list(key, "a list of numbers", |value| match value {
            Value::Float(score) if score.is_finite() => Some(*score),
            _ => None,
        })?;
        let scores = scores.ok_or_else(|| Error::File(format!("the GGUF file has no {key}")))?;
        check_length(key, scores.len(), tokens)?;
        Ok(scores)
    }

    pub(super) fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.list(key, "a list of bytes", |value| match value {
            Value::Int(number) => u8::try_from(*number)
                .or_else(|_| i8::try_from(*number).map(|byte| byte as u8))
                .ok(),
            _ => None,
        })
    }
}

pub(super) fn check_length(key: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::File(format!(
        "corrupt GGUF metadata: {key} has {found} entries for {wanted} tokens"
    )))
}
