//! Owns joining the bytes of one piece into tokens: always the pair of lowest rank, the leftmost first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::merges::{Merges, NO_MERGE, Rule, joined};

/// Pieces of up to this many symbols are scanned for the best pair; longer ones keep a heap.
const SCAN_LIMIT: usize = 64;
const NONE: u32 = u32::MAX;

/// Buffers that pieces share.
#[derive(Default)]
pub(crate) struct MergeBuffers {
    ids: Vec<u32>,
    /// The rule of each symbol with the next one.
    rules: Vec<Rule>,
    before: Vec<u32>,
    after: Vec<u32>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

impl MergeBuffers {
    /// The buffer to fill with the ids of a piece's bytes, empty.
    pub(crate) fn symbols(&mut self) -> &mut Vec<u32> {
        self.ids.clear();
        &mut self.ids
    }

    /// Join the symbols as far as the rules go. The result stays valid until the next call.
    pub(crate) fn join(&mut self, merges: &Merges) -> &[u32] {
        self.rules.clear();
        self.rules
            .extend(self.ids.windows(2).map(|two| merges.get(two[0], two[1])));
        if self.ids.len() <= SCAN_LIMIT {
            self.join_by_scan(merges);
        } else {
            self.join_by_heap(merges);
        }
        &self.ids
    }

    /// Quadratic, but without bookkeeping: the fastest for the pieces that texts are made of.
    fn join_by_scan(&mut self, merges: &Merges) {
        let (ids, rules) = (&mut self.ids, &mut self.rules);
        loop {
            let (mut best, mut at) = (NO_MERGE, 0);
            for (place, &rule) in rules.iter().enumerate() {
                if rule < best {
                    (best, at) = (rule, place);
                }
            }
            if best == NO_MERGE {
                return;
            }
            ids[at] = joined(best);
            ids.remove(at + 1);
            rules.remove(at);
            if at < rules.len() {
                rules[at] = merges.get(ids[at], ids[at + 1]);
            }
            if at > 0 {
                rules[at - 1] = merges.get(ids[at - 1], ids[at]);
            }
        }
    }

    /// A linked list of symbols and a heap of (rank, position): `n log n` for `n` bytes.
    fn join_by_heap(&mut self, merges: &Merges) {
        self.link();
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            let here = at as usize;
            let rule = self.rules[here];
            // An entry is stale once its pair changed; the same rank means the same pair.
            if rule == NO_MERGE || (rule >> 32) as u32 != rank {
                continue;
            }
            let gone = self.after[here] as usize;
            self.ids[here] = joined(rule);
            self.ids[gone] = NONE;
            self.rules[gone] = NO_MERGE;
            let next = self.after[gone];
            self.after[here] = next;
            self.rules[here] = NO_MERGE;
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
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| **rule != NO_MERGE);
        entries.extend(ranked.map(|(at, &rule)| Reverse(((rule >> 32) as u32, at as u32))));
        self.heap = BinaryHeap::from(entries);
        self.rules.push(NO_MERGE);
    }

    fn pair_up(&mut self, merges: &Merges, left: usize, right: usize) {
        let rule = merges.get(self.ids[left], self.ids[right]);
        self.rules[left] = rule;
        if rule != NO_MERGE {
            self.heap.push(Reverse(((rule >> 32) as u32, left as u32)));
        }
    }
}
