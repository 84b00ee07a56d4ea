//! Owns the content of a `SentencePiece` model file. Knows nothing of how it is used.

use std::collections::HashSet;

use super::piece_kinds as kinds;
use super::protobuf::{Fields, Wire};
use crate::error::{Error, Result};

/// How the vocabulary was trained, and so how it cuts text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Unigram,
    Bpe,
}

/// What is read of a model file; fields that are not there have the format's defaults.
pub(crate) struct Model {
    pub(crate) pieces: Vec<String>,
    pub(crate) scores: Vec<f64>,
    /// As in [`kinds`].
    pub(crate) piece_kinds: Vec<i128>,
    pub(crate) algorithm: Algorithm,
    pub(crate) byte_fallback: bool,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) charsmap: Vec<u8>,
    pub(crate) spaces: Spaces,
}

/// What happens to spaces before a text is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spaces {
    /// One is put before the text.
    pub(crate) add_prefix: bool,
    /// Those around the text go away, and of several in a row one stays.
    pub(crate) remove_extra: bool,
    /// They become the mark that pieces hold.
    pub(crate) escape: bool,
}

impl Model {
    pub(crate) fn parse(content: &[u8]) -> Result<Self> {
        let mut model = Self {
            pieces: Vec::new(),
            scores: Vec::new(),
            piece_kinds: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: false,
            bos: Some(1),
            eos: Some(2),
            pad: None,
            charsmap: Vec::new(),
            spaces: Spaces {
                add_prefix: true,
                remove_extra: true,
                escape: true,
            },
        };
        each_field(content, "the file", |number, value| match (number, value) {
            (1, Wire::Bytes(message)) => model.read_piece(message),
            (2, Wire::Bytes(message)) => model.read_trainer(message),
            (3, Wire::Bytes(message)) => model.read_normalizer(message),
            (5, Wire::Bytes(message)) => refuse_denormalizer(message),
            _ => Ok(()),
        })?;
        model.check()?;
        Ok(model)
    }

    /// The piece for what no other piece covers.
    pub(crate) fn unknown(&self) -> Option<usize> {
        self.piece_kinds.iter().position(|&kind| kind == kinds::UNKNOWN)
    }

    fn read_piece(&mut self, message: &[u8]) -> Result<()> {
        let place = format!("piece {}", self.pieces.len());
        let (mut piece, mut score, mut kind) = (None, 0.0, kinds::NORMAL);
        each_field(message, &place, |number, value| {
            match (number, value) {
                (1, Wire::Bytes(bytes)) => {
                    let text = std::str::from_utf8(bytes).map_err(|_| {
                        Error::File(format!("broken SentencePiece model: {place} is not UTF-8"))
                    })?;
                    piece = Some(text.to_owned());
                }
                (2, Wire::Fixed32(bits)) => score = f64::from(f32::from_bits(bits)),
                (3, Wire::Varint(number)) => kind = i128::from(number),
                _ => {}
            }
            Ok(())
        })?;
        let piece = piece.filter(|piece| !piece.is_empty());
        let piece =
            piece.ok_or_else(|| Error::File(format!("broken SentencePiece model: {place} is empty")))?;
        if !score.is_finite() || !(kinds::NORMAL..=kinds::BYTE).contains(&kind) {
            return Err(Error::File(format!(
                "broken SentencePiece model: {place} has the score {score} and the type {kind}"
            )));
        }
        self.pieces.push(piece);
        self.scores.push(score);
        self.piece_kinds.push(kind);
        Ok(())
    }

    fn read_trainer(&mut self, message: &[u8]) -> Result<()> {
        each_field(message, "trainer_spec", |number, value| {
            let Wire::Varint(value) = value else {
                return Ok(());
            };
            // Ids are int32 on the wire; -1 stands for none.
            let id = u32::try_from(value as i64).ok();
            match number {
                3 => {
                    self.algorithm = match value {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        other => {
                            return Err(Error::File(format!(
                                "the SentencePiece model type {other} is not supported; unigram (1) and BPE (2) are"
                            )));
                        }
                    }
                }
                24 if value != 0 => {
                    return Err(Error::File(
                        "SentencePiece models with treat_whitespace_as_suffix are not supported".to_owned(),
                    ));
                }
                35 => self.byte_fallback = value != 0,
                41 => self.bos = id,
                42 => self.eos = id,
                43 => self.pad = id,
                _ => {}
            }
            Ok(())
        })
    }

    fn read_normalizer(&mut self, message: &[u8]) -> Result<()> {
        each_field(message, "normalizer_spec", |number, value| {
            match (number, value) {
                (2, Wire::Bytes(charsmap)) => self.charsmap = charsmap.to_vec(),
                (3, Wire::Varint(flag)) => self.spaces.add_prefix = flag != 0,
                (4, Wire::Varint(flag)) => self.spaces.remove_extra = flag != 0,
                (5, Wire::Varint(flag)) => self.spaces.escape = flag != 0,
                _ => {}
            }
            Ok(())
        })
    }

    fn check(&mut self) -> Result<()> {
        let broken = |reason: String| Err(Error::File(format!("broken SentencePiece model: {reason}")));
        if self.pieces.is_empty() {
            return broken("it holds no pieces".to_owned());
        }
        let mut seen = HashSet::new();
        if let Some(piece) = self.pieces.iter().find(|piece| !seen.insert(piece.as_str())) {
            return broken(format!("the piece {piece:?} is there twice"));
        }
        if !self.piece_kinds.contains(&kinds::UNKNOWN) {
            return broken("no piece stands for what is unknown".to_owned());
        }
        check_charsmap(&self.charsmap)?;
        let size = self.pieces.len() as u32;
        for id in [&mut self.bos, &mut self.eos, &mut self.pad] {
            // The defaults name ids that need not be there.
            *id = id.filter(|&id| id < size && self.piece_kinds[id as usize] != kinds::NORMAL);
        }
        Ok(())
    }
}

/// A compiled map starts with the size of its trie; the library trusts it, so it is checked here.
pub(crate) fn check_charsmap(charsmap: &[u8]) -> Result<()> {
    if charsmap.is_empty() {
        return Ok(());
    }
    let size = charsmap
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes) as usize);
    match size {
        Some(size) if size.is_multiple_of(4) && size > 0 && charsmap.len() - 4 >= size => Ok(()),
        _ => Err(Error::File(
            "broken SentencePiece model: precompiled_charsmap is truncated".to_owned(),
        )),
    }
}

fn refuse_denormalizer(message: &[u8]) -> Result<()> {
    each_field(message, "denormalizer_spec", |number, value| {
        match (number, value) {
            (2, Wire::Bytes(charsmap)) if !charsmap.is_empty() => Err(Error::File(
                "SentencePiece models with a denormalizer are not supported".to_owned(),
            )),
            _ => Ok(()),
        }
    })
}

fn each_field<'a>(
    message: &'a [u8],
    place: &str,
    mut read: impl FnMut(u64, Wire<'a>) -> Result<()>,
) -> Result<()> {
    let mut fields = Fields::of(message);
    loop {
        let field = fields.next().map_err(|reason| {
            Error::File(format!(
                "neither a tokenizer.json nor a sound SentencePiece model: {reason} in {place}"
            ))
        })?;
        match field {
            Some((number, value)) => read(number, value)?,
            None => return Ok(()),
        }
    }
}
