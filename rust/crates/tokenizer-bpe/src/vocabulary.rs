//! Owns the tokens as byte strings: bytes to id, id to bytes. Fixed after loading; a text only reads it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::piece_key::{MAX_KEYED, hash_of, key_of};

const EMPTY: u64 = u64::MAX;

/// Whether the merges build a token out of its own bytes, once somebody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    Unknown = 0,
    Yes = 1,
    No = 2,
}

/// The byte-level tokens of a model.
pub(crate) struct Vocabulary {
    /// All token bytes, one token behind the other, in order of id.
    arena: Vec<u8>,
    /// Where each id starts in the arena; one more entry than ids. Ids without a token are empty.
    starts: Vec<u32>,
    /// Open addressing: the upper half of the hash, then the id.
    slots: Vec<u64>,
    shift: u32,
    hasher: ahash::RandomState,
    whole: Vec<AtomicU8>,
    byte_ids: [Option<u32>; 256],
}

impl Vocabulary {
    /// Of tokens and ids, each id at most once.
    pub(crate) fn new(mut tokens: Vec<(Vec<u8>, u32)>) -> Self {
        tokens.sort_unstable_by_key(|&(_, id)| id);
        let num_ids = tokens.last().map_or(0, |&(_, id)| id as usize + 1);
        let capacity = (tokens.len() * 2).next_power_of_two().max(16);
        let mut this = Self {
            arena: Vec::with_capacity(tokens.iter().map(|(bytes, _)| bytes.len()).sum()),
            starts: Vec::with_capacity(num_ids + 1),
            slots: vec![EMPTY; capacity],
            shift: 64 - capacity.trailing_zeros(),
            hasher: seeded(),
            whole: (0..num_ids).map(|_| AtomicU8::new(0)).collect(),
            byte_ids: [None; 256],
        };
        for (bytes, id) in tokens {
            this.push(&bytes, id);
        }
        this.starts.push(this.arena.len() as u32);
        this
    }

    fn push(&mut self, bytes: &[u8], id: u32) {
        while self.starts.len() <= id as usize {
            self.starts.push(self.arena.len() as u32);
        }
        self.arena.extend_from_slice(bytes);
        if let [byte] = bytes {
            self.byte_ids[usize::from(*byte)] = Some(id);
        }
        if bytes.is_empty() {
            return;
        }
        let hash = self.hash(bytes, 0, bytes.len());
        let mut at = (hash >> self.shift) as usize;
        while self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = (hash << 32) | u64::from(id);
    }

    #[inline]
    fn hash(&self, text: &[u8], start: usize, end: usize) -> u64 {
        if end - start <= MAX_KEYED {
            hash_of(key_of(text, start, end))
        } else {
            self.hasher.hash_one(&text[start..end])
        }
    }

    /// The id of the token `text[start..end]`, which is not empty.
    #[inline]
    pub(crate) fn id_of(&self, text: &[u8], start: usize, end: usize) -> Option<u32> {
        let hash = self.hash(text, start, end);
        let mut at = (hash >> self.shift) as usize;
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return None;
            }
            if slot >> 32 == hash & 0xffff_ffff && self.bytes(slot as u32) == &text[start..end] {
                return Some(slot as u32);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The bytes of a token.
    #[inline]
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        &self.arena[self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize]
    }

    /// The token of a single byte, where the vocabulary has one.
    #[inline]
    pub(crate) fn byte_id(&self, byte: u8) -> Option<u32> {
        self.byte_ids[usize::from(byte)]
    }

    /// Bytes that can stand in UTF-8 text but have no token.
    pub(crate) fn missing_bytes(&self) -> Vec<u8> {
        (0..=255)
            .filter(|byte| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff) && self.byte_id(*byte).is_none())
            .collect()
    }

    /// What is known of a token's own merges.
    #[inline]
    pub(crate) fn whole(&self, id: u32) -> Whole {
        match self.whole[id as usize].load(Ordering::Relaxed) {
            1 => Whole::Yes,
            2 => Whole::No,
            _ => Whole::Unknown,
        }
    }

    /// Remember whether the merges build a token out of its own bytes.
    pub(crate) fn set_whole(&self, id: u32, whole: Whole) {
        self.whole[id as usize].store(whole as u8, Ordering::Relaxed);
    }
}

/// A hasher that no text can be built against: its seeds come from the operating system.
pub(crate) fn seeded() -> ahash::RandomState {
    let state = RandomState::new();
    ahash::RandomState::with_seeds(
        state.hash_one(1),
        state.hash_one(2),
        state.hash_one(3),
        state.hash_one(4),
    )
}
