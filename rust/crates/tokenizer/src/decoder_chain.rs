//! Owns the reading of a tokenizer's decoder: what it does to one token, how tokens join, what follows on the text.
//! Knows nothing of vocabularies or rows.
//!
//! A decoder of the `tokenizers` library is a chain of stages over the list of tokens. The usual chains are stages
//! that look at one token, one stage that joins tokens, and stages on the joined text. Such a chain is split here
//! at the join. A chain of another form is [`Join::Whole`]: only a decode of all tokens tells its text.

use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{Decoder, DecoderWrapper};

use crate::text_stage::TextStage;
use crate::text_tokenizer::fence;

/// How the pieces of a row's tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// Bytes of one stream; invalid sequences become U+FFFD as in `String::from_utf8_lossy`.
    ByteStream,
    /// Text, but for runs of byte tokens; a run that is not valid UTF-8 gives one U+FFFD a byte.
    ByteRuns,
    /// Text, each piece complete.
    Text,
    /// The library decodes all tokens at the end.
    Whole,
}

/// Where a token stands among those that the decoder sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// What a token is to the join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Byte(u8),
    /// The decoder drops the token, as if it had not come.
    Dropped,
}

/// The stages of a decoder, sorted.
#[derive(Debug, Default)]
pub(crate) struct DecoderChain {
    /// No decoder: tokens are joined with spaces.
    spaced: bool,
    per_token: Vec<DecoderWrapper>,
    /// Stages on the tokens that stand behind the joining of byte runs.
    behind_runs: Vec<DecoderWrapper>,
    on_text: Vec<TextStage>,
    join: Option<Join>,
}

impl DecoderChain {
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let mut stages = Vec::new();
        if let Some(decoder) = decoder {
            flatten(decoder, &mut stages);
        }
        let mut chain = Self {
            spaced: decoder.is_none(),
            ..Self::default()
        };
        let fuse = stages
            .iter()
            .position(|stage| matches!(stage, DecoderWrapper::Fuse(_) | DecoderWrapper::ByteLevel(_)));
        let (on_tokens, on_text) = stages.split_at(fuse.unwrap_or(stages.len()));
        chain.sort_token_stages(on_tokens);
        if let Some((fuse, on_text)) = on_text.split_first() {
            if matches!(fuse, DecoderWrapper::ByteLevel(_)) {
                // Behind byte runs, byte-level would read their text as its own alphabet.
                let stream = chain.join.is_none() && !chain.ends_differ();
                chain.join = Some(if stream { Join::ByteStream } else { Join::Whole });
            }
            chain.on_text = TextStage::list(on_text);
        }
        chain
    }

    fn sort_token_stages(&mut self, stages: &[DecoderWrapper]) {
        for stage in stages {
            let in_runs = self.join == Some(Join::ByteRuns);
            match stage {
                DecoderWrapper::Replace(_)
                | DecoderWrapper::Strip(_)
                | DecoderWrapper::Metaspace(_)
                | DecoderWrapper::WordPiece(_) => {
                    let list = if in_runs {
                        &mut self.behind_runs
                    } else {
                        &mut self.per_token
                    };
                    list.push(stage.clone());
                }
                DecoderWrapper::ByteFallback(_) if !in_runs && !self.ends_differ() => {
                    self.join = Some(Join::ByteRuns);
                }
                DecoderWrapper::BPE(_) if !in_runs && !self.ends_differ() => {
                    self.per_token.push(stage.clone());
                }
                // Repeated tokens are told by id, so nothing in front may depend on where a token stands.
                DecoderWrapper::CTC(_)
                    if !in_runs && !self.drops_repeats() && !self.ends_differ() && !self.starts_differ() =>
                {
                    self.per_token.push(stage.clone());
                }
                _ => {
                    self.join = Some(Join::Whole);
                    return;
                }
            }
        }
    }

    pub(crate) fn join(&self) -> Join {
        self.join.unwrap_or(Join::Text)
    }

    pub(crate) fn text_stages(&self) -> &[TextStage] {
        &self.on_text
    }

    /// The first token's piece may differ from the same token's piece further on.
    pub(crate) fn starts_differ(&self) -> bool {
        self.spaced
            || (self.per_token.iter().chain(&self.behind_runs))
                .any(|stage| matches!(stage, DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_)))
    }

    /// The last token's piece may differ from the same token's piece before others.
    pub(crate) fn ends_differ(&self) -> bool {
        self.per_token
            .iter()
            .any(|stage| matches!(stage, DecoderWrapper::BPE(_)))
    }

    /// A token that equals the one before it is dropped.
    pub(crate) fn drops_repeats(&self) -> bool {
        self.per_token
            .iter()
            .any(|stage| matches!(stage, DecoderWrapper::CTC(_)))
    }

    /// What repeats are told by: the token's text in front of the stage that drops them.
    pub(crate) fn repeat_key(&self, token: &str) -> Option<String> {
        let ctc = self
            .per_token
            .iter()
            .position(|stage| matches!(stage, DecoderWrapper::CTC(_)))?;
        let mut text = token.to_owned();
        for stage in &self.per_token[..ctc] {
            let place = Place {
                first: true,
                last: true,
            };
            text = one_token(stage, text, place).ok()??;
        }
        Some(text)
    }

    /// The token's piece at `place`; `None` where the library fails on the token.
    pub(crate) fn piece(&self, token: &str, place: Place) -> Option<Piece> {
        if self.spaced && !place.first {
            return Some(Piece::Text(format!(" {token}")));
        }
        let mut text = token.to_owned();
        for stage in &self.per_token {
            match one_token(stage, text, place).ok()? {
                Some(changed) => text = changed,
                None => return Some(Piece::Dropped),
            }
        }
        if self.join() == Join::ByteRuns
            && let Some(byte) = fallback_byte(&text)
        {
            return Some(Piece::Byte(byte));
        }
        for stage in &self.behind_runs {
            text = one_token(stage, text, place).ok()??;
        }
        Some(Piece::Text(text))
    }

    /// The text of a run of byte tokens, judged as a whole as the library does.
    pub(crate) fn run_text(&self, run: Vec<u8>, first: bool) -> String {
        let texts = match String::from_utf8(run) {
            Ok(text) => vec![text],
            Err(error) => vec!["\u{FFFD}".to_owned(); error.as_bytes().len()],
        };
        let mut joined = String::new();
        for (at, text) in texts.into_iter().enumerate() {
            let place = Place {
                first: first && at == 0,
                last: false,
            };
            let shown = self
                .behind_runs
                .iter()
                .try_fold(text, |text, stage| one_token(stage, text, place).ok()?);
            joined.push_str(&shown.unwrap_or_default());
        }
        joined
    }
}

/// One stage on one token among others; `None` where the stage drops it.
fn one_token(
    stage: &DecoderWrapper,
    token: String,
    place: Place,
) -> std::result::Result<Option<String>, String> {
    if matches!(stage, DecoderWrapper::CTC(_)) {
        return fence(|| stage.decode_chain(vec![token])).map(|mut tokens| tokens.pop());
    }
    let mut tokens = vec![token];
    if !place.first {
        tokens.insert(0, "x".to_owned());
    }
    if !place.last {
        tokens.push("x".to_owned());
    }
    let mut tokens = fence(|| stage.decode_chain(tokens))?;
    Ok(Some(tokens.swap_remove(usize::from(!place.first))))
}

fn flatten(decoder: &DecoderWrapper, stages: &mut Vec<DecoderWrapper>) {
    if let DecoderWrapper::Sequence(sequence) = decoder {
        for stage in sequence.get_decoders() {
            flatten(stage, stages);
        }
    } else {
        stages.push(decoder.clone());
    }
}

/// The byte of a fallback token such as `<0x0A>`, read as loosely as the library reads it.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

impl TextStage {
    /// The stages that follow on joined text; those from the first that cannot work on parts are one.
    fn list(stages: &[DecoderWrapper]) -> Vec<Self> {
        let mut list = Vec::new();
        for (at, stage) in stages.iter().enumerate() {
            match Self::of(stage) {
                Some(stage) => list.push(stage),
                None if matches!(stage, DecoderWrapper::Fuse(_)) => {}
                None => {
                    list.push(Self::Held(stages[at..].to_vec()));
                    break;
                }
            }
        }
        list
    }

    fn of(stage: &DecoderWrapper) -> Option<Self> {
        match stage {
            DecoderWrapper::Strip(strip) => Some(Self::Strip {
                content: strip.content,
                start: strip.start,
                stop: strip.stop,
            }),
            DecoderWrapper::Metaspace(metaspace) => Some(Self::Metaspace {
                replacement: metaspace.get_replacement(),
                drop: metaspace.get_prepend_scheme() != PrependScheme::Never,
            }),
            DecoderWrapper::Replace(replace) => {
                let fields = serde_json::to_value(replace).ok()?;
                let pattern = fields.get("pattern")?.get("String")?.as_str()?;
                (!pattern.is_empty()).then(|| Self::Replace {
                    pattern: pattern.to_owned(),
                    content: replace.content.clone(),
                })
            }
            _ => None,
        }
    }
}
