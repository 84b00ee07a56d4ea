//! Owns the map from sequence ids to sequences. Ids count up from 0, so one multiplication spreads them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Sequence;

/// Open sequences by id.
pub(crate) type Sequences = HashMap<i64, Sequence, BuildHasherDefault<IdHasher>>;

#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The map takes its bucket from the low bits and its tag from the high ones.
        let spread = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }

    fn write_i64(&mut self, id: i64) {
        self.write_u64(id as u64);
    }
}
