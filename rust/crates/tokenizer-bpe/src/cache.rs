//! Owns remembering the ids of pieces seen before, in bounded memory: about half a MiB for short pieces and at
//! most `MAX_LONG` long ones. A cache belongs to one thread at a time.

use std::collections::HashMap;

use crate::piece_key::{MAX_KEYED, hash_of, key_of};

const SHORT_BITS: u32 = 14;
const INLINE_IDS: usize = 3;
/// Entries of the table of long pieces; when it is full it starts over.
const MAX_LONG: usize = 4096;
/// Longer pieces are not kept: they hardly ever return.
const MAX_KEPT: usize = 256;

/// A short piece with few tokens: 32 bytes, so that two share a cache line.
#[derive(Clone, Copy)]
struct Short {
    key: u128,
    ids: [u32; INLINE_IDS],
    count: u32,
}

/// Pieces and their ids.
pub(crate) struct PieceCache {
    /// Direct-mapped: a colliding piece takes the place, so that no text can make it slow.
    short: Vec<Short>,
    long: HashMap<Box<[u8]>, Box<[u32]>, ahash::RandomState>,
}

impl PieceCache {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        let empty = Short {
            key: 0,
            ids: [0; INLINE_IDS],
            count: 0,
        };
        Self {
            short: vec![empty; 1 << SHORT_BITS],
            long: HashMap::with_hasher(hasher),
        }
    }

    /// Append the ids of the piece `text[start..end]` where they are known.
    #[inline]
    pub(crate) fn read(&self, text: &[u8], start: usize, end: usize, ids: &mut Vec<u32>) -> bool {
        if end - start <= MAX_KEYED {
            let key = key_of(text, start, end);
            let entry = &self.short[place(key)];
            if entry.key == key {
                if entry.count == 1 {
                    ids.push(entry.ids[0]);
                } else {
                    ids.extend_from_slice(&entry.ids[..entry.count as usize]);
                }
                return true;
            }
        }
        self.read_long(&text[start..end], ids)
    }

    fn read_long(&self, piece: &[u8], ids: &mut Vec<u32>) -> bool {
        match self.long.get(piece) {
            Some(known) => {
                ids.extend_from_slice(known);
                true
            }
            None => false,
        }
    }

    /// Keep the ids of the piece `text[start..end]`.
    pub(crate) fn write(&mut self, text: &[u8], start: usize, end: usize, ids: &[u32]) {
        let len = end - start;
        if len <= MAX_KEYED && ids.len() <= INLINE_IDS {
            let key = key_of(text, start, end);
            let entry = &mut self.short[place(key)];
            entry.key = key;
            entry.ids[..ids.len()].copy_from_slice(ids);
            entry.count = ids.len() as u32;
        } else if len <= MAX_KEPT {
            if self.long.len() >= MAX_LONG {
                self.long.clear();
            }
            self.long.insert(text[start..end].into(), ids.into());
        }
    }
}

#[inline]
fn place(key: u128) -> usize {
    (hash_of(key) >> (64 - SHORT_BITS)) as usize
}
