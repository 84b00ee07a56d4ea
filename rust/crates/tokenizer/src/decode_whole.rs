//! Owns the decoding of one row through the library at its end, for decoders that no table can stand for.

use crate::decode_state::common_start;
use crate::error::Result;
use crate::text_tokenizer::TextTokenizer;

/// All visible tokens of one row.
#[derive(Debug, Clone)]
pub(crate) struct DecodeWhole {
    ids: Vec<u32>,
    prompt_tokens: usize,
}

impl DecodeWhole {
    /// Start behind these visible tokens of a prompt.
    pub(crate) fn after_prompt(visible: Vec<u32>) -> Self {
        Self {
            prompt_tokens: visible.len(),
            ids: visible,
        }
    }

    /// Take one visible token; no text is certain before the end.
    pub(crate) fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// The text ends here: what the tokens add to the prompt's text.
    pub(crate) fn finish(&mut self, tokenizer: &TextTokenizer, out: &mut String) -> Result<()> {
        let before = tokenizer.decode_unchecked(&self.ids[..self.prompt_tokens], false)?;
        let after = tokenizer.decode_unchecked(&self.ids, false)?;
        out.push_str(&after[common_start(&before, &after)..]);
        Ok(())
    }
}
