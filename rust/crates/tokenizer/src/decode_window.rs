//! Owns the decoding of one row through the library, for decoders without an exact table.
//!
//! The text of a window of recent tokens is decoded with and without the new ones; the difference is new text.
//! Exact for decoders whose view of a token reaches no further than the window; text that ends in U+FFFD is
//! held back, as a character may be unfinished.

use crate::error::Result;
use crate::text_tokenizer::TextTokenizer;

/// Prompt tokens that are kept as the context of the first output token.
const PROMPT_CONTEXT_TOKENS: usize = 16;

/// The recent tokens of one row. `ids[..shown]` gave the text shown so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecodeWindow {
    ids: Vec<u32>,
    shown: usize,
}

impl DecodeWindow {
    /// Start behind these visible tokens of a prompt.
    pub(crate) fn after_prompt(visible: &[u32]) -> Self {
        let context = &visible[visible.len().saturating_sub(PROMPT_CONTEXT_TOKENS)..];
        Self {
            ids: context.to_vec(),
            shown: context.len(),
        }
    }

    /// Take one visible token; text that is complete is appended to `out`.
    pub(crate) fn push(&mut self, tokenizer: &TextTokenizer, id: u32, out: &mut String) -> Result<()> {
        self.ids.push(id);
        let (before, after) = match self.texts(tokenizer) {
            Ok(texts) => texts,
            Err(error) => {
                self.ids.pop();
                return Err(error);
            }
        };
        let new = added_text(&before, &after);
        if !new.is_empty() && !after.ends_with(char::REPLACEMENT_CHARACTER) {
            out.push_str(new);
            self.ids.drain(..self.shown);
            self.shown = self.ids.len();
        }
        Ok(())
    }

    /// The text ends here: give out what was held.
    pub(crate) fn finish(&mut self, tokenizer: &TextTokenizer, out: &mut String) -> Result<()> {
        let (before, after) = self.texts(tokenizer)?;
        out.push_str(added_text(&before, &after));
        self.shown = self.ids.len();
        Ok(())
    }

    fn texts(&self, tokenizer: &TextTokenizer) -> Result<(String, String)> {
        let before = tokenizer.decode_unchecked(&self.ids[..self.shown], false)?;
        Ok((before, tokenizer.decode_unchecked(&self.ids, false)?))
    }
}

/// What `after` has beyond its common start with `before`.
fn added_text<'a>(before: &str, after: &'a str) -> &'a str {
    let common: usize = before
        .chars()
        .zip(after.chars())
        .take_while(|(left, right)| left == right)
        .map(|(left, _)| left.len_utf8())
        .sum();
    &after[common..]
}
