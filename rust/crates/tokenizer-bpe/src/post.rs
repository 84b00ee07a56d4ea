//! Owns what happens behind the model: tokens around the text, and offsets without white space.

use crate::encoding::Span;

/// A step for one text.
pub(crate) enum PostStep {
    /// Take white space at the ends of tokens out of their offsets.
    Trim {
        /// A single leading space of the first token is taken for one that was put there.
        prefix_space: bool,
    },
    /// Put tokens around the text.
    Ends(Ends),
}

/// The tokens around a text.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) before: Vec<SpecialToken>,
    pub(crate) after: Vec<SpecialToken>,
}

/// A token that stands for no part of the text.
pub(crate) struct SpecialToken {
    id: u32,
    span: Span,
}

impl SpecialToken {
    pub(crate) fn new(id: u32, text: &str) -> Self {
        Self {
            id,
            span: Span::of_text(0, 0, text),
        }
    }
}

/// Put the tokens around `ids` that the steps ask for.
pub(crate) fn add_ends(steps: &[PostStep], ids: &mut Vec<u32>) {
    for step in steps {
        if let PostStep::Ends(ends) = step {
            ids.splice(0..0, ends.before.iter().map(|token| token.id));
            ids.extend(ends.after.iter().map(|token| token.id));
        }
    }
}

/// Run the steps over ids with their spans.
pub(crate) fn run(steps: &[PostStep], add_special_tokens: bool, ids: &mut Vec<u32>, spans: &mut Vec<Span>) {
    for step in steps {
        match step {
            PostStep::Trim { prefix_space } => trim(*prefix_space, spans),
            PostStep::Ends(ends) if add_special_tokens => {
                ids.splice(0..0, ends.before.iter().map(|token| token.id));
                spans.splice(0..0, ends.before.iter().map(|token| token.span));
                ids.extend(ends.after.iter().map(|token| token.id));
                spans.extend(ends.after.iter().map(|token| token.span));
            }
            PostStep::Ends(_) => {}
        }
    }
}

fn trim(prefix_space: bool, spans: &mut [Span]) {
    for (at, span) in spans.iter_mut().enumerate() {
        let mut lead = span.lead;
        if lead == 1 && prefix_space && (at == 0 || span.start == 0) {
            lead = 0;
        }
        span.start = (span.start + lead).min(span.end);
        if span.end >= span.trail {
            span.end = (span.end - span.trail).max(span.start);
        }
    }
}
