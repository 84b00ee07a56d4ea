//! Owns finding added tokens in a text: leftmost, then longest, with their word and white-space rules.

use aho_corasick::{AhoCorasick, MatchKind};
use regex_syntax::is_word_character;

use crate::error::{Result, Unsupported};
use crate::load::AddedTokenEntry;
use crate::normalize::{Form, normalize};

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The bytes `start..end` stand outside added tokens.
    Text(usize, usize),
    /// The bytes `start..end` are the token.
    Token(u32, usize, usize),
}

/// The added tokens: those looked for in the text as given, and those looked for in the normalized text.
pub(crate) struct AddedTokens {
    pub(crate) as_given: Matcher,
    pub(crate) normalized: Matcher,
}

/// Tokens that are looked for together.
#[derive(Default)]
pub(crate) struct Matcher {
    automaton: Option<AhoCorasick>,
    rules: Vec<Rule>,
    /// Take what spells a special token for text.
    pub(crate) ignore_special: bool,
}

// The flags are those of the file format, independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy)]
struct Rule {
    id: u32,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    special: bool,
}

impl AddedTokens {
    /// Ids are given as the library does: the model's, or the next behind all.
    pub(crate) fn new(
        entries: &[AddedTokenEntry],
        form: Option<Form>,
        id_of: impl Fn(&str) -> Option<u32>,
        vocabulary_size: usize,
    ) -> Result<Self> {
        let mut by_id: Vec<(u32, &AddedTokenEntry)> = Vec::new();
        let mut next = vocabulary_size as u32;
        for entry in entries.iter().filter(|entry| !entry.content.is_empty()) {
            let earlier = by_id.iter().position(|(_, other)| other.content == entry.content);
            let id = earlier.map(|at| by_id[at].0).or_else(|| id_of(&entry.content));
            let id = id.unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            match earlier {
                Some(at) => by_id[at].1 = entry,
                None => by_id.push((id, entry)),
            }
        }
        let pick = |normalized: bool| {
            let chosen = by_id
                .iter()
                .filter(move |(_, entry)| entry.normalized == normalized);
            chosen.map(move |(id, entry)| {
                let text = match form {
                    Some(form) if normalized => normalize(form, &entry.content, false).text,
                    _ => entry.content.clone(),
                };
                (text, rule(*id, entry))
            })
        };
        Ok(Self {
            as_given: Matcher::new(pick(false))?,
            normalized: Matcher::new(pick(true))?,
        })
    }
}

fn rule(id: u32, entry: &AddedTokenEntry) -> Rule {
    Rule {
        id,
        single_word: entry.single_word,
        lstrip: entry.lstrip,
        rstrip: entry.rstrip,
        special: entry.special,
    }
}

impl Matcher {
    fn new(tokens: impl Iterator<Item = (String, Rule)>) -> Result<Self> {
        let (texts, rules): (Vec<String>, Vec<Rule>) = tokens.unzip();
        if texts.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|reason| Unsupported::new("added_tokens", reason.to_string()))?;
        Ok(Self {
            automaton: Some(automaton),
            rules,
            ignore_special: false,
        })
    }

    /// Call `emit` with the parts of `text` in order; empty parts are left out.
    pub(crate) fn split(&self, text: &str, mut emit: impl FnMut(Part)) {
        let mut done = 0;
        if let Some(automaton) = &self.automaton {
            for found in automaton.find_iter(text) {
                let rule = self.rules[found.pattern().as_usize()];
                let (mut start, mut end) = (found.start(), found.end());
                if rule.special && self.ignore_special {
                    continue;
                }
                if rule.single_word && !stands_alone(text, start, end) {
                    continue;
                }
                if rule.lstrip {
                    start = text[..start].trim_end().len().max(done);
                }
                if rule.rstrip {
                    end = text.len() - text[end..].trim_start().len();
                }
                if done < start {
                    emit(Part::Text(done, start));
                }
                emit(Part::Token(rule.id, start, end));
                done = end;
            }
        }
        if done < text.len() {
            emit(Part::Text(done, text.len()));
        }
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].chars().next_back();
    let after = text[end..].chars().next();
    !before.is_some_and(is_word_character) && !after.is_some_and(is_word_character)
}
