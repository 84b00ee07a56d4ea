//! Owns the merge rules: which pair of tokens joins into which, and how early. Fixed after loading.

use crate::piece_key::fold;

/// No merge: sorts behind every rank.
pub(crate) const NO_MERGE: u64 = u64::MAX;
const EMPTY: u64 = u64::MAX;

/// A rule as one number: the rank in the upper half, the id of the joined token in the lower.
pub(crate) type Rule = u64;

/// The id that a rule makes.
#[inline]
pub(crate) fn joined(rule: Rule) -> u32 {
    rule as u32
}

/// Pair of ids to rule, by open addressing.
pub(crate) struct Merges {
    /// Pair and rule next to each other, so that a look-up costs one cache line.
    slots: Vec<(u64, Rule)>,
    shift: u32,
}

impl Merges {
    /// Of rules in order of rank: left, right, joined. A pair that occurs again takes its last rule.
    pub(crate) fn new(rules: &[(u32, u32, u32)]) -> Self {
        let capacity = (rules.len() + rules.len() / 2).next_power_of_two().max(16);
        let mut this = Self {
            slots: vec![(EMPTY, NO_MERGE); capacity],
            shift: 64 - capacity.trailing_zeros(),
        };
        for (rank, &(left, right, joined)) in rules.iter().enumerate() {
            let at = this.find(left, right);
            this.slots[at] = (pair(left, right), (rank as u64) << 32 | u64::from(joined));
        }
        this
    }

    /// The rule of a pair, or `NO_MERGE`.
    #[inline]
    pub(crate) fn get(&self, left: u32, right: u32) -> Rule {
        self.slots[self.find(left, right)].1
    }

    #[inline]
    fn find(&self, left: u32, right: u32) -> usize {
        let pair = pair(left, right);
        let hash = fold(pair ^ 0x2545_f491_4f6c_dd1d, 0x9e37_79b9_7f4a_7c15);
        let mut at = (hash >> self.shift) as usize;
        while self.slots[at].0 != pair && self.slots[at].0 != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }
}

#[inline]
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
