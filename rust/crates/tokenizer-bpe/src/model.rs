//! Owns turning one piece of text into ids: cache, whole-token look-up, merges. Knows nothing of whole texts.

use crate::alphabet::Alphabet;
use crate::cache::PieceCache;
use crate::merge_loop::MergeBuffers;
use crate::merges::Merges;
use crate::vocabulary::{Vocabulary, Whole, seeded};

/// A byte-level BPE model.
pub(crate) struct Model {
    pub(crate) vocabulary: Vocabulary,
    merges: Merges,
    ignore_merges: bool,
    alphabet: Alphabet,
    hasher: ahash::RandomState,
}

/// What one thread needs to run a model.
pub(crate) struct Workspace {
    cache: PieceCache,
    buffers: MergeBuffers,
}

impl Model {
    pub(crate) fn new(vocabulary: Vocabulary, merges: Merges, ignore_merges: bool) -> Self {
        Self {
            vocabulary,
            merges,
            ignore_merges,
            alphabet: Alphabet::new(),
            hasher: seeded(),
        }
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace {
            cache: PieceCache::new(self.hasher.clone()),
            buffers: MergeBuffers::default(),
        }
    }

    /// Append the ids of the piece `text[start..end]`, which is not empty.
    #[inline]
    pub(crate) fn encode_piece(
        &self,
        text: &[u8],
        start: usize,
        end: usize,
        space: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        if !space.cache.read(text, start, end, ids) {
            self.encode_new_piece(text, start, end, space, ids);
        }
    }

    fn encode_new_piece(
        &self,
        text: &[u8],
        start: usize,
        end: usize,
        space: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        let token = self.vocabulary.id_of(text, start, end);
        let whole = token.map_or(Whole::No, |id| self.vocabulary.whole(id));
        if let Some(id) = token
            && (self.ignore_merges || whole == Whole::Yes)
        {
            ids.push(id);
            space.cache.write(text, start, end, &[id]);
            return;
        }
        let found = space
            .buffers
            .join(&text[start..end], &self.vocabulary, &self.merges);
        if let Some(id) = token
            && whole == Whole::Unknown
        {
            let own = if found == [id] { Whole::Yes } else { Whole::No };
            self.vocabulary.set_whole(id, own);
        }
        ids.extend_from_slice(found);
        space.cache.write(text, start, end, found);
    }

    /// Append the byte range of each of a piece's tokens. The piece starts at `start`.
    pub(crate) fn spans(&self, piece: &[u8], start: usize, ids: &[u32], spans: &mut Vec<(usize, usize)>) {
        let len: usize = ids.iter().map(|&id| self.vocabulary.bytes(id).len()).sum();
        if len != piece.len() {
            return self.spans_with_holes(piece, start, ids, spans);
        }
        let mut at = start;
        spans.extend(ids.iter().map(|&id| {
            let from = at;
            at += self.vocabulary.bytes(id).len();
            (from, at)
        }));
    }

    /// As the library does it where bytes without a token were left out: lengths in the written alphabet add up
    /// from the start of the piece, holes not counted.
    fn spans_with_holes(&self, piece: &[u8], start: usize, ids: &[u32], spans: &mut Vec<(usize, usize)>) {
        let written: Vec<usize> = (piece.iter().enumerate())
            .flat_map(|(at, &byte)| std::iter::repeat_n(at, self.alphabet.written_len(byte)))
            .collect();
        let mut at = 0;
        for &id in ids {
            let token = self.vocabulary.bytes(id);
            let end = at
                + token
                    .iter()
                    .map(|&byte| self.alphabet.written_len(byte))
                    .sum::<usize>();
            spans.push((start + written[at], start + written[end - 1] + 1));
            at = end;
        }
    }
}
