//! Owns what a decoder does to the text after tokens were joined, on text that comes in parts.
//! Knows nothing of tokens.

use tokenizers::{Decoder, DecoderWrapper};

use crate::text_tokenizer::fence;

/// A stage on joined text, as the tokenizer's file states it.
#[derive(Debug, Clone)]
pub(crate) enum TextStage {
    /// Take a character away at the start and the end of the text, up to a number of times.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// Replace a fixed text.
    Replace { pattern: String, content: String },
    /// The joined text is one token, the first: the mark is dropped, or becomes a space.
    Metaspace { replacement: char, drop: bool },
    /// Stages that need the whole text; it is held until the end.
    Held(Vec<DecoderWrapper>),
}

/// Where a row's text stands in one stage.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextStageState {
    held: String,
    starts_done: usize,
    started: bool,
}

impl TextStage {
    /// Take the next part of the text; what no later part can change is appended to `out`.
    pub(crate) fn push(&self, state: &mut TextStageState, text: &str, out: &mut String) {
        match self {
            Self::Strip { content, start, stop } => {
                let text = state.without_start(text, *content, *start);
                state.hold_end(text, *content, *stop, out);
            }
            Self::Replace { pattern, content } => state.replace(text, pattern, content, out),
            Self::Metaspace { replacement, drop } => {
                let kept = text.chars().filter(|&mark| !(*drop && mark == *replacement));
                out.extend(kept.map(|mark| if mark == *replacement { ' ' } else { mark }));
            }
            Self::Held(_) => state.held.push_str(text),
        }
    }

    /// Nothing that may still come will be changed.
    pub(crate) fn is_done(&self, state: &TextStageState) -> bool {
        matches!(self, Self::Strip { stop: 0, .. }) && state.started
    }

    /// The text ends here: give out what was held.
    pub(crate) fn finish(&self, state: &mut TextStageState, out: &mut String) {
        let held = std::mem::take(&mut state.held);
        match self {
            Self::Replace { .. } => out.push_str(&held),
            Self::Held(stages) => {
                let mut tokens = vec![held];
                for stage in stages {
                    // A stage that fails leaves no text, where the library's decode would fail.
                    tokens = fence(|| stage.decode_chain(tokens)).unwrap_or_default();
                }
                out.extend(tokens);
            }
            Self::Strip { .. } | Self::Metaspace { .. } => {}
        }
    }
}

impl TextStageState {
    fn without_start<'a>(&mut self, mut text: &'a str, content: char, times: usize) -> &'a str {
        while !self.started && !text.is_empty() {
            match text.strip_prefix(content) {
                Some(after) if self.starts_done < times => {
                    text = after;
                    self.starts_done += 1;
                }
                _ => self.started = true,
            }
        }
        text
    }

    /// Hold the last characters back that the end of the text would take away.
    fn hold_end(&mut self, text: &str, content: char, times: usize, out: &mut String) {
        if times == 0 {
            out.push_str(text);
            return;
        }
        self.held.push_str(text);
        let run = self
            .held
            .chars()
            .rev()
            .take_while(|&mark| mark == content)
            .take(times);
        let shown = self.held.len() - run.map(char::len_utf8).sum::<usize>();
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
    }

    /// Replace from left to right, and hold back an end that may begin the pattern.
    fn replace(&mut self, text: &str, pattern: &str, content: &str, out: &mut String) {
        self.held.push_str(text);
        let mut rest = self.held.as_str();
        while let Some(at) = rest.find(pattern) {
            out.push_str(&rest[..at]);
            out.push_str(content);
            rest = &rest[at + pattern.len()..];
        }
        let begun = (1..pattern.len().min(rest.len() + 1))
            .rev()
            .find(|&size| rest.as_bytes().ends_with(&pattern.as_bytes()[..size]))
            .unwrap_or(0);
        let shown = rest.len() - begun;
        out.push_str(&rest[..shown]);
        self.held = rest[shown..].to_owned();
    }
}
