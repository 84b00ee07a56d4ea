//! Owns the way of one text: added tokens, normal form, pieces, model, ends. Holds the workspaces of its threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::added::Part;
use crate::encoding::Span;
use crate::error::Result;
use crate::load::{self, Parts};
use crate::model::Workspace;
use crate::normalize::{is_normal, normalize};
use crate::place::{CharIndex, Place};
use crate::{post, scan};

/// Workspaces that are kept for the next text; more threads than this make their own each time.
const MAX_WORKSPACES: usize = 64;

/// A byte-level BPE tokenizer, ready to encode. Shared between threads by reference.
///
/// Memory beside the vocabulary: one workspace of about half a MiB for each thread that encodes at the same time,
/// and up to 4,096 longer pieces of at most 256 bytes in each.
pub struct FastBpe {
    parts: Parts,
    workspaces: Mutex<Vec<Workspace>>,
}

/// Ids with the characters of the text that each stands for.
pub type IdsWithOffsets = (Vec<u32>, Vec<(usize, usize)>);

/// What a text becomes while it is encoded.
struct Output<'a> {
    ids: Vec<u32>,
    places: Option<Places<'a>>,
}

/// The spans, and what is needed to work them out.
struct Places<'a> {
    chars: &'a CharIndex,
    spans: Vec<Span>,
    /// Byte ranges of one piece's tokens.
    ranges: Vec<(usize, usize)>,
}

impl FastBpe {
    /// Of the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Unsupported) where the file is not of the family that this crate encodes exactly as
    /// the `tokenizers` library does; the caller then encodes with the library.
    pub fn from_json(json: &str) -> Result<Self> {
        Ok(Self {
            parts: load::read(json)?,
            workspaces: Mutex::new(Vec::new()),
        })
    }

    /// The same tokenizer, for which text that spells a special token is text like any other.
    #[must_use]
    pub fn ignoring_special_tokens(mut self) -> Self {
        self.parts.added.as_given.ignore_special = true;
        self.parts.added.normalized.ignore_special = true;
        self
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        let mut workspace = self.take();
        let ids = self.encode_with(text, add_special_tokens, &mut workspace);
        self.give_back(workspace);
        ids
    }

    /// The ids of `text`, and for each the range of characters (Unicode scalar values) that it stands for.
    pub fn encode_with_offsets(&self, text: &str, add_special_tokens: bool) -> IdsWithOffsets {
        let mut workspace = self.take();
        let chars = CharIndex::new(text);
        let places = Places {
            chars: &chars,
            spans: Vec::new(),
            ranges: Vec::new(),
        };
        let mut output = Output {
            ids: Vec::new(),
            places: Some(places),
        };
        self.run(text, &mut workspace, &mut output);
        self.give_back(workspace);
        let mut spans = output.places.map_or_else(Vec::new, |places| places.spans);
        post::run(&self.parts.post, add_special_tokens, &mut output.ids, &mut spans);
        let offsets = spans.iter().map(|span| (span.start, span.end)).collect();
        (output.ids, offsets)
    }

    pub(crate) fn encode_with(
        &self,
        text: &str,
        add_special_tokens: bool,
        workspace: &mut Workspace,
    ) -> Vec<u32> {
        let mut output = Output {
            ids: Vec::with_capacity(text.len() / 4 + 4),
            places: None,
        };
        self.run(text, workspace, &mut output);
        if add_special_tokens {
            post::add_ends(&self.parts.post, &mut output.ids);
        }
        output.ids
    }

    fn run(&self, text: &str, workspace: &mut Workspace, output: &mut Output) {
        self.parts.added.as_given.split(text, |part| match part {
            Part::Token(id, start, end) => {
                let place = Place {
                    base: 0,
                    origin: None,
                };
                output.added(id, text, start, end, place);
            }
            Part::Text(start, end) => self.normalized(&text[start..end], start, workspace, output),
        });
    }

    /// A stretch of the text between added tokens, which starts at the byte `base`.
    fn normalized(&self, text: &str, base: usize, workspace: &mut Workspace, output: &mut Output) {
        match self.parts.form {
            Some(form) if !is_normal(form, text) => {
                let normal = normalize(form, text, output.places.is_some());
                let origin = Some(normal.origin.as_slice());
                self.segments(&normal.text, Place { base, origin }, workspace, output);
            }
            _ => self.segments(text, Place { base, origin: None }, workspace, output),
        }
    }

    fn segments(&self, text: &str, place: Place, workspace: &mut Workspace, output: &mut Output) {
        self.parts.added.normalized.split(text, |part| match part {
            Part::Token(id, start, end) => output.added(id, text, start, end, place),
            Part::Text(start, end) => {
                let text = &text[start..end];
                if self.parts.chain.prefix_space && !text.starts_with(' ') {
                    self.spaced(text, output.part(place, start), workspace, output);
                } else {
                    self.pieces(text, output.part(place, start), workspace, output);
                }
            }
        });
    }

    fn spaced(&self, text: &str, place: Place, workspace: &mut Workspace, output: &mut Output) {
        let origin = if output.places.is_some() {
            place.with_space(text)
        } else {
            Vec::new()
        };
        let spaced = format!(" {text}");
        let place = Place {
            base: place.base,
            origin: Some(&origin),
        };
        self.pieces(&spaced, place, workspace, output);
    }

    fn pieces(&self, text: &str, place: Place, workspace: &mut Workspace, output: &mut Output) {
        let (model, bytes) = (&self.parts.model, text.as_bytes());
        let Output { ids, places } = output;
        match places {
            None => scan::cut(&self.parts.chain.stages, text, |start, end| {
                model.encode_piece(bytes, start, end, workspace, ids);
            }),
            Some(places) => scan::cut(&self.parts.chain.stages, text, |start, end| {
                let first = ids.len();
                model.encode_piece(bytes, start, end, workspace, ids);
                places.ranges.clear();
                model.spans(&bytes[start..end], start, &ids[first..], &mut places.ranges);
                for (&id, &(start, end)) in ids[first..].iter().zip(&places.ranges) {
                    let (from, to) = place.bytes(start, end);
                    let (from, to) = places.chars.chars(from, to);
                    places
                        .spans
                        .push(Span::of_bytes(from, to, model.vocabulary.bytes(id)));
                }
            }),
        }
    }

    pub(crate) fn take(&self) -> Workspace {
        let kept = self.kept().pop();
        kept.unwrap_or_else(|| self.parts.model.workspace())
    }

    pub(crate) fn give_back(&self, workspace: Workspace) {
        let mut kept = self.kept();
        if kept.len() < MAX_WORKSPACES {
            kept.push(workspace);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output<'_> {
    /// An added token at the bytes `start..end` of a segment.
    fn added(&mut self, id: u32, text: &str, start: usize, end: usize, place: Place) {
        self.ids.push(id);
        if let Some(places) = &mut self.places {
            let (from, to) = place.bytes(start, end);
            let (from, to) = places.chars.chars(from, to);
            places.spans.push(Span::of_text(from, to, &text[start..end]));
        }
    }

    /// The place of a part; without spans nobody asks where it is.
    fn part<'a>(&self, place: Place<'a>, start: usize) -> Place<'a> {
        if self.places.is_some() {
            place.part(start)
        } else {
            place
        }
    }
}
