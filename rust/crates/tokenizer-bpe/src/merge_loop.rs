//! Owns joining the bytes of one piece into tokens: always the pair of lowest rank, the leftmost first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::merges::{Merges, NO_MERGE, Rank};
use crate::vocabulary::Vocabulary;

/// Pieces of up to this many symbols are scanned for the best pair; longer ones keep a heap.
const SCAN_LIMIT: usize = 100;
const NONE: u32 = u32::MAX;

/// Buffers that pieces share.
#[derive(Default)]
pub(crate) struct MergeBuffers {
    ids: Vec<u32>,
    /// The rank of each symbol with the next one.
    ranks: Vec<Rank>,
    before: Vec<u32>,
    after: Vec<u32>,
    heap: BinaryHeap<Reverse<(Rank, u32)>>,
}

impl MergeBuffers {
    /// Join the bytes of a piece as far as the rules go; bytes without a token are left out. The result stays
    /// valid until the next call.
    pub(crate) fn join(&mut self, piece: &[u8], vocabulary: &Vocabulary, merges: &Merges) -> &[u32] {
        self.ids.clear();
        self.ids
            .extend(piece.iter().filter_map(|&byte| vocabulary.byte_id(byte)));
        self.ranks.clear();
        if self.ids.len() == piece.len() {
            self.ranks
                .extend(piece.windows(2).map(|two| merges.of_bytes(two[0], two[1])));
        } else {
            self.ranks
                .extend(self.ids.windows(2).map(|two| merges.get(two[0], two[1])));
        }
        if self.ids.len() <= SCAN_LIMIT {
            self.join_by_scan(merges);
        } else {
            self.join_by_heap(merges);
        }
        &self.ids
    }

    /// Quadratic, but without bookkeeping: the fastest for the pieces that texts are made of.
    fn join_by_scan(&mut self, merges: &Merges) {
        let (ids, ranks) = (&mut self.ids, &mut self.ranks);
        loop {
            let best = ranks.iter().copied().min().unwrap_or(NO_MERGE);
            if best == NO_MERGE {
                return;
            }
            let Some(at) = ranks.iter().position(|&rank| rank == best) else {
                return;
            };
            ids[at] = merges.joined(best);
            ids.remove(at + 1);
            ranks.remove(at);
            if at < ranks.len() {
                ranks[at] = merges.get(ids[at], ids[at + 1]);
            }
            if at > 0 {
                ranks[at - 1] = merges.get(ids[at - 1], ids[at]);
            }
        }
    }

    /// A linked list of symbols and a heap of (rank, position): `n log n` for `n` bytes.
    fn join_by_heap(&mut self, merges: &Merges) {
        self.link();
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            let here = at as usize;
            // An entry is stale once its pair changed; the same rank means the same pair.
            if self.ranks[here] != rank {
                continue;
            }
            let gone = self.after[here] as usize;
            self.ids[here] = merges.joined(rank);
            self.ids[gone] = NONE;
            self.ranks[gone] = NO_MERGE;
            let next = self.after[gone];
            self.after[here] = next;
            self.ranks[here] = NO_MERGE;
            if next != NONE {
                self.before[next as usize] = at;
                self.pair_up(merges, here, next as usize);
            }
            let before = self.before[here];
            if before != NONE {
                self.pair_up(merges, before as usize, here);
            }
        }
        self.ids.retain(|&id| id != NONE);
    }

    fn link(&mut self) {
        let count = self.ids.len() as u32;
        self.before.clear();
        self.before.extend((0..count).map(|at| at.wrapping_sub(1)));
        self.after.clear();
        self.after.extend(1..count);
        self.after.push(NONE);
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        let ranked = self
            .ranks
            .iter()
            .enumerate()
            .filter(|(_, rank)| **rank != NO_MERGE);
        entries.extend(ranked.map(|(at, &rank)| Reverse((rank, at as u32))));
        self.heap = BinaryHeap::from(entries);
        self.ranks.push(NO_MERGE);
    }

    fn pair_up(&mut self, merges: &Merges, left: usize, right: usize) {
        let rank = merges.get(self.ids[left], self.ids[right]);
        self.ranks[left] = rank;
        if rank != NO_MERGE {
            self.heap.push(Reverse((rank, left as u32)));
        }
    }
}
