//! Owns cutting a text into pieces: one hand-written scanner a pattern family, and chains of them.
//!
//! Each scanner sees only the segment it is given, so that look-ahead ends where the segment does, as in the
//! library's chain of pre-tokenizers.

mod cl100k;
mod class_run;
mod cursor;
mod deepseek;
mod gpt2;
mod line_tail;
mod o200k;
pub(crate) mod patterns;

pub(crate) use cl100k::Cl100k;
pub(crate) use class_run::{Class, ClassRun};
use cursor::Cursor;
pub(crate) use o200k::O200k;

/// One step of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// GPT-2's pattern.
    Gpt2,
    /// Llama 3, Qwen, cl100k.
    Cl100k(Cl100k),
    /// GPT-4o, gpt-oss, Llama 4, Tekken.
    O200k(O200k),
    /// The last pattern of DeepSeek V3 and V4.
    Deepseek,
    /// `\s+$`.
    LineTail,
    /// Runs of a class.
    ClassRun(ClassRun),
}

impl Stage {
    #[inline]
    fn scan(&self, text: &str, mut emit: impl FnMut(usize, usize)) {
        let cursor = Cursor::new(text);
        match self {
            Self::Gpt2 => cover(&cursor, gpt2::next, emit),
            Self::Cl100k(family) => cover(&cursor, |cursor, at| family.next(cursor, at), emit),
            Self::O200k(family) => cover(&cursor, |cursor, at| family.next(cursor, at), emit),
            Self::Deepseek => deepseek::scan(&cursor, emit),
            Self::LineTail => line_tail::scan(&cursor, emit),
            Self::ClassRun(run) => run.scan(&cursor, &mut emit),
        }
    }
}

/// Call `emit` for piece after piece of a pattern that leaves no gaps.
#[inline]
fn cover(cursor: &Cursor, next: impl Fn(&Cursor, usize) -> usize, mut emit: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < cursor.text.len() {
        let end = next(cursor, at);
        emit(at, end);
        at = end;
    }
}

/// Cut `text` by the stages in turn; `emit` gets the bounds of each final piece, in order.
#[inline]
pub(crate) fn cut(stages: &[Stage], text: &str, mut emit: impl FnMut(usize, usize)) {
    match stages {
        [] if text.is_empty() => {}
        [] => emit(0, text.len()),
        [only] => only.scan(text, emit),
        [first, rest @ ..] => first.scan(text, |start, end| {
            cut_part(rest, &text[start..end], start, &mut emit);
        }),
    }
}

fn cut_part(stages: &[Stage], text: &str, base: usize, emit: &mut dyn FnMut(usize, usize)) {
    match stages {
        [] => emit(base, base + text.len()),
        [first, rest @ ..] => first.scan(text, |start, end| {
            cut_part(rest, &text[start..end], base + start, emit);
        }),
    }
}

#[cfg(test)]
mod tests;
