//! Sequences under random operations on a simulated device: every invariant holds after each, nobody reads what was
//! not written for its own tokens, and refused calls change nothing.
//!
//! The exact answers are checked against the plain-Python model of `packages/kvcache/tests`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use kvcache_sequences::{CacheConfig, CacheError, ChainKeys, KvCache, Sequence};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Open {
        tokens: Vec<u32>,
        salted: bool,
        matched: bool,
    },
    Grow {
        rows: Vec<(usize, usize)>,
    },
    Append {
        rows: Vec<(usize, Vec<u32>)>,
    },
    Step {
        rows: Vec<usize>,
    },
    Truncate {
        row: usize,
        n: usize,
    },
    Shrink {
        row: usize,
        n: usize,
    },
    Fork {
        row: usize,
    },
    Release {
        row: usize,
    },
    Reset,
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..2_u32, 0..14)
}

fn operation() -> impl Strategy<Value = Operation> {
    let row = 0..8_usize;
    prop_oneof![
        4 => (tokens(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(tokens, salted, matched)| Operation::Open { tokens, salted, matched }),
        5 => prop::collection::vec((row.clone(), 0..9_usize), 1..4).prop_map(|rows| Operation::Grow { rows }),
        3 => prop::collection::vec((row.clone(), tokens()), 0..3).prop_map(|rows| Operation::Append { rows }),
        5 => prop::collection::vec(row.clone(), 0..8).prop_map(|rows| Operation::Step { rows }),
        2 => (row.clone(), 0..16_usize).prop_map(|(row, n)| Operation::Truncate { row, n }),
        2 => (row.clone(), 0..16_usize).prop_map(|(row, n)| Operation::Shrink { row, n }),
        3 => row.clone().prop_map(|row| Operation::Fork { row }),
        2 => row.prop_map(|row| Operation::Release { row }),
        1 => Just(Operation::Reset),
    ]
}

#[derive(Clone)]
struct Known {
    salted: bool,
    tokens: Vec<u32>,
    computed: usize,
}

/// The cache, the tokens of each sequence, and what the device's memory holds.
struct World {
    cache: KvCache,
    config: CacheConfig,
    known: BTreeMap<i64, Known>,
    memory: Vec<Vec<u64>>,
}

/// The identity of the keys and values at the last position of `tokens`.
fn contents(salted: bool, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (salted, tokens).hash(&mut hasher);
    hasher.finish()
}

impl World {
    fn new(block_size: usize, num_blocks: usize) -> Self {
        let config = CacheConfig {
            block_size,
            num_blocks,
            prefix_caching: true,
        };
        Self {
            cache: KvCache::new(config).expect("a small cache"),
            config,
            known: BTreeMap::new(),
            memory: vec![vec![0; block_size]; num_blocks],
        }
    }

    fn pick(&self, row: usize) -> Option<i64> {
        self.known.keys().nth(row % self.known.len().max(1)).copied()
    }

    fn apply(&mut self, operation: Operation) -> Result<(), CacheError> {
        match operation {
            Operation::Open {
                tokens,
                salted,
                matched,
            } => self.open(tokens, salted, matched),
            Operation::Grow { rows } => self.grow(&rows),
            Operation::Append { rows } => self.append(&rows),
            Operation::Step { rows } => self.step(&rows),
            Operation::Truncate { row, n } => self.truncate(row, n),
            Operation::Shrink { row, n } => self.shrink(row, n),
            Operation::Fork { row } => self.fork(row),
            Operation::Release { row } => self.release(row),
            Operation::Reset => {
                let idle = self.cache.stats().used == 0;
                assert_eq!(self.cache.reset_prefix_cache()?, idle);
                assert!(!idle || self.cache.stats().cached == 0);
                Ok(())
            }
        }
    }

    fn open(&mut self, tokens: Vec<u32>, salted: bool, matched: bool) -> Result<(), CacheError> {
        let keys = ChainKeys {
            salt: salted.then(|| b"salt".to_vec()),
            ..ChainKeys::default()
        };
        let id = self
            .cache
            .open(Sequence::new(&self.config, tokens.clone(), keys)?)?;
        let computed = if matched {
            self.cache.match_prefix(id, None)?
        } else {
            0
        };
        assert!(computed == 0 || computed < tokens.len());
        self.known.insert(
            id,
            Known {
                salted,
                tokens,
                computed,
            },
        );
        Ok(())
    }

    fn grow(&mut self, rows: &[(usize, usize)]) -> Result<(), CacheError> {
        let rows = rows.iter().filter_map(|(row, n)| Some((self.pick(*row)?, *n)));
        let (ids, ns) = rows.unzip::<_, _, Vec<_>, Vec<_>>();
        let before = ids
            .iter()
            .map(|id| self.cache.num_reserved(*id))
            .collect::<Result<Vec<_>, _>>()?;
        let growth = self.cache.grow_many(&ids, &ns)?;
        assert_eq!(growth.offsets.len(), ids.len() + 1);
        for (row, id) in ids.iter().enumerate() {
            let granted = (0..ids.len()).filter(|other| ids[*other] == *id && growth.ok[*other]);
            let expected = before[row] + granted.map(|other| ns[other]).sum::<usize>();
            assert_eq!(self.cache.num_reserved(*id)?, expected);
            assert!(growth.ok[row] || growth.offsets[row] == growth.offsets[row + 1]);
        }
        Ok(())
    }

    fn append(&mut self, rows: &[(usize, Vec<u32>)]) -> Result<(), CacheError> {
        let (mut ids, mut flat, mut offsets) = (vec![], vec![], vec![0]);
        for (row, tokens) in rows {
            let Some(id) = self.pick(*row) else { return Ok(()) };
            ids.push(id);
            flat.extend_from_slice(tokens);
            offsets.push(flat.len() as i32);
            self.known
                .entry(id)
                .and_modify(|known| known.tokens.extend(tokens));
        }
        self.cache.append_many(&ids, &flat, &offsets)
    }

    fn step(&mut self, rows: &[usize]) -> Result<(), CacheError> {
        for copy in self.cache.take_copies() {
            let contents = self.memory[copy.source as usize].clone();
            self.memory[copy.destination as usize] = contents;
        }
        let ids = rows.iter().filter_map(|row| self.pick(*row)).collect::<Vec<_>>();
        for id in &ids {
            let end = self.cache.num_reserved(*id)?.min(self.known[id].tokens.len());
            for position in self.known[id].computed..end {
                let value = contents(self.known[id].salted, &self.known[id].tokens[..=position]);
                *self.slot(*id, position)? = value;
            }
            self.known
                .entry(*id)
                .and_modify(|known| known.computed = known.computed.max(end));
        }
        let computed = ids.iter().map(|id| self.known[id].computed).collect::<Vec<_>>();
        self.cache.commit_many(&ids, &computed)?;
        self.check_memory()
    }

    fn slot(&mut self, id: i64, position: usize) -> Result<&mut u64, CacheError> {
        let size = self.config.block_size;
        let block = self.cache.block_table(id)?[position / size];
        Ok(&mut self.memory[block as usize][position % size])
    }

    fn check_memory(&mut self) -> Result<(), CacheError> {
        for (id, known) in self.known.clone() {
            for position in 0..known.computed {
                let expected = contents(known.salted, &known.tokens[..=position]);
                assert_eq!(*self.slot(id, position)?, expected, "sequence {id} at {position}");
            }
        }
        Ok(())
    }

    fn truncate(&mut self, row: usize, n: usize) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        self.cache.truncate(id, n)?;
        self.known.entry(id).and_modify(|known| {
            known.tokens.truncate(n);
            known.computed = known.computed.min(n);
        });
        Ok(())
    }

    fn shrink(&mut self, row: usize, n: usize) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        self.cache.shrink(id, n)?;
        self.known
            .entry(id)
            .and_modify(|known| known.computed = known.computed.min(n));
        Ok(())
    }

    fn fork(&mut self, row: usize) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        let child = self.cache.fork(id)?;
        self.known.insert(child, self.known[&id].clone());
        Ok(())
    }

    fn release(&mut self, row: usize) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        self.known.remove(&id);
        self.cache.release(id)?;
        assert_eq!(self.cache.release(id), Err(CacheError::UnknownSequence(id)));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_invariant_holds(
        block_size in 1..5_usize, num_blocks in 2..14_usize, operations in prop::collection::vec(operation(), 0..50),
    ) {
        let mut world = World::new(block_size, num_blocks);
        for operation in operations {
            prop_assert_eq!(world.apply(operation), Ok(()));
            prop_assert_eq!(world.cache.check(), Ok(()));
            let stats = world.cache.stats();
            prop_assert_eq!(stats.free + stats.cached + stats.used, num_blocks);
        }
        let ids = world.known.keys().copied().collect::<Vec<_>>();
        prop_assert_eq!(world.cache.release_many(&ids), Ok(()));
        prop_assert_eq!(world.cache.check(), Ok(()));
        prop_assert_eq!(world.cache.stats().used, 0);
    }
}

#[test]
fn a_sequence_of_another_configuration_is_refused() {
    let mut cache = KvCache::new(CacheConfig {
        block_size: 4,
        num_blocks: 2,
        prefix_caching: true,
    })
    .expect("small");
    for other in [
        CacheConfig {
            block_size: 2,
            num_blocks: 2,
            prefix_caching: true,
        },
        CacheConfig {
            block_size: 4,
            num_blocks: 2,
            prefix_caching: false,
        },
    ] {
        let sequence = Sequence::new(&other, vec![1], ChainKeys::default()).expect("a sequence");
        assert!(matches!(
            cache.open(sequence),
            Err(CacheError::InvalidArgument {
                field: "sequence",
                ..
            })
        ));
    }
    let none = CacheConfig {
        block_size: 0,
        num_blocks: 2,
        prefix_caching: true,
    };
    assert!(Sequence::new(&none, vec![1], ChainKeys::default()).is_err());
    assert!(KvCache::new(none).is_err());
}

#[test]
fn a_block_cannot_be_found_by_contents_that_its_sole_owner_may_overwrite() {
    let config = CacheConfig {
        block_size: 4,
        num_blocks: 4,
        prefix_caching: true,
    };
    let mut cache = KvCache::new(config).expect("a small cache");
    let open = |cache: &mut KvCache| {
        let sequence = Sequence::new(&config, vec![1, 2, 3, 4, 5], ChainKeys::default()).expect("a sequence");
        cache.open(sequence).expect("an id")
    };
    let owner = open(&mut cache);
    assert_eq!(cache.grow(owner, 4), Ok(true));
    assert_eq!(cache.commit(owner, 4), Ok(()));
    assert_eq!(cache.shrink(owner, 2), Ok(()));
    let reader = open(&mut cache);
    assert_eq!(cache.match_prefix(reader, None), Ok(4));
    assert_eq!(cache.release(reader), Ok(()));
    assert_eq!(cache.grow(owner, 1), Ok(true));
    assert_eq!(cache.block_table(owner), Ok([0].as_slice()));
    let reader = open(&mut cache);
    assert_eq!(cache.match_prefix(reader, None), Ok(0));
    assert_eq!(cache.check(), Ok(()));
}
