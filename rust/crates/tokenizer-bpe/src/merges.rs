//! Owns the merge rules: which pair of tokens joins into which, and how early. Fixed after loading.

use crate::error::{Result, Unsupported};
use crate::piece_key::fold;

/// The place of a rule in the order of the file: lower joins first.
pub(crate) type Rank = u32;

/// No rule: sorts behind every rank.
pub(crate) const NO_MERGE: Rank = u32::MAX;

const EMPTY: u64 = u64::MAX;
/// A slot holds left and right id and the rank in one number, so that the table stays small enough for caches.
const ID_BITS: u32 = 20;
const RANK_BITS: u32 = 64 - 2 * ID_BITS;
const FILTER_BITS: u32 = 21;

/// Pair of ids to rank, by open addressing, and rank to the joined id.
pub(crate) struct Merges {
    slots: Vec<u64>,
    shift: u32,
    /// A bit for each hash of a pair that has a rule. Most pairs have none, and this table fits a near cache.
    filter: Vec<u64>,
    joined: Vec<u32>,
    /// The ranks of pairs of single bytes, by `left << 8 | right`: every piece starts with these.
    of_bytes: Vec<Rank>,
}

impl Merges {
    /// Of rules in order of rank: left, right, joined. A pair that occurs again takes its last rule.
    pub(crate) fn new(rules: &[(u32, u32, u32)], byte_id: impl Fn(u8) -> Option<u32>) -> Result<Self> {
        let most_id = rules.iter().map(|rule| rule.0.max(rule.1)).max().unwrap_or(0);
        if most_id >> ID_BITS != 0 || rules.len() >> RANK_BITS != 0 {
            return Err(Unsupported::new(
                "model",
                "more than a million tokens, or 16 million merges",
            ));
        }
        let capacity = (rules.len() + rules.len() / 2).next_power_of_two().max(16);
        let mut this = Self {
            slots: vec![EMPTY; capacity],
            shift: 64 - capacity.trailing_zeros(),
            filter: vec![0; 1 << (FILTER_BITS - 6)],
            joined: rules.iter().map(|rule| rule.2).collect(),
            of_bytes: Vec::new(),
        };
        for (rank, &(left, right, _)) in rules.iter().enumerate() {
            let hash = hash_of(left, right);
            let at = this.find(hash, left, right);
            this.slots[at] = pair(left, right) << RANK_BITS | rank as u64;
            this.filter[filter_word(hash)] |= filter_bit(hash);
        }
        let bytes = || (0..=255).map(&byte_id);
        let rank = |left: Option<u32>, right: Option<u32>| match (left, right) {
            (Some(left), Some(right)) => this.get(left, right),
            _ => NO_MERGE,
        };
        let of_bytes = bytes().flat_map(|left| bytes().map(move |right| (left, right)));
        this.of_bytes = of_bytes.map(|(left, right)| rank(left, right)).collect();
        Ok(this)
    }

    /// The rank of a pair, or `NO_MERGE`. Ids beyond those of the rules have none.
    #[inline]
    pub(crate) fn get(&self, left: u32, right: u32) -> Rank {
        if (left | right) >> ID_BITS != 0 {
            return NO_MERGE;
        }
        let hash = hash_of(left, right);
        if self.filter[filter_word(hash)] & filter_bit(hash) == 0 {
            return NO_MERGE;
        }
        match self.slots[self.find(hash, left, right)] {
            EMPTY => NO_MERGE,
            slot => (slot & ((1 << RANK_BITS) - 1)) as Rank,
        }
    }

    /// The rank of the pair of two bytes' tokens.
    #[inline]
    pub(crate) fn of_bytes(&self, left: u8, right: u8) -> Rank {
        self.of_bytes[usize::from(left) << 8 | usize::from(right)]
    }

    /// The token that the rule of a rank makes.
    #[inline]
    pub(crate) fn joined(&self, rank: Rank) -> u32 {
        self.joined[rank as usize]
    }

    #[inline]
    fn find(&self, hash: u64, left: u32, right: u32) -> usize {
        let pair = pair(left, right);
        let mut at = (hash >> self.shift) as usize;
        while self.slots[at] >> RANK_BITS != pair && self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }
}

#[inline]
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

#[inline]
fn hash_of(left: u32, right: u32) -> u64 {
    fold(pair(left, right) ^ 0x2545_f491_4f6c_dd1d, 0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn filter_word(hash: u64) -> usize {
    (hash >> (64 - FILTER_BITS + 6)) as usize
}

#[inline]
fn filter_bit(hash: u64) -> u64 {
    1 << (hash >> (64 - FILTER_BITS) & 63)
}
