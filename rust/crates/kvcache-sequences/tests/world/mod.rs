//! Owns a cache together with what the memories of device and host hold, and random operations on both.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use kvcache_sequences::{
    CacheConfig, CacheError, ChainKeys, Event, GroupSpec, Keeps, KvCache, Media, NO_BLOCK, Retention,
    Sequence, Transfer, policy_by_name,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Open {
        tokens: Vec<u32>,
        salted: bool,
        media: Option<usize>,
        tenant: usize,
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
        longest: usize,
        transfers_fail: bool,
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
    Pin {
        row: usize,
        n: usize,
        ttl: Option<f64>,
    },
    Unpin,
    Time {
        seconds: f64,
    },
    Quota {
        tenant: usize,
        blocks: Option<usize>,
    },
    Retain {
        row: usize,
        priority: i32,
        ttl: Option<f64>,
    },
    Reset,
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..2_u32, 0..16)
}

fn seconds() -> impl Strategy<Value = Option<f64>> {
    prop::option::of((0..5_u8).prop_map(f64::from))
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let row = 0..8_usize;
    prop_oneof![
        5 => (tokens(), prop::bool::weighted(0.2), prop::option::weighted(0.2, 0..16_usize), 0..3_usize, prop::bool::weighted(0.8))
            .prop_map(|(tokens, salted, media, tenant, matched)| {
                Operation::Open { media: media.filter(|at| *at < tokens.len()), tokens, salted, tenant, matched }
            }),
        5 => prop::collection::vec((row.clone(), 0..9_usize), 1..4).prop_map(|rows| Operation::Grow { rows }),
        3 => prop::collection::vec((row.clone(), tokens()), 0..3).prop_map(|rows| Operation::Append { rows }),
        6 => (prop::collection::vec(row.clone(), 0..8), 1..20_usize, prop::bool::weighted(0.1))
            .prop_map(|(rows, longest, transfers_fail)| Operation::Step { rows, longest, transfers_fail }),
        2 => (row.clone(), 0..16_usize).prop_map(|(row, n)| Operation::Truncate { row, n }),
        2 => (row.clone(), 0..16_usize).prop_map(|(row, n)| Operation::Shrink { row, n }),
        3 => row.clone().prop_map(|row| Operation::Fork { row }),
        3 => row.clone().prop_map(|row| Operation::Release { row }),
        1 => (row.clone(), 0..16_usize, seconds()).prop_map(|(row, n, ttl)| Operation::Pin { row, n, ttl }),
        1 => Just(Operation::Unpin),
        1 => (0..4_u8).prop_map(|seconds| Operation::Time { seconds: f64::from(seconds) }),
        1 => (0..3_usize, prop::option::of(0..12_usize)).prop_map(|(tenant, blocks)| Operation::Quota { tenant, blocks }),
        1 => (row, -2..3_i32, seconds()).prop_map(|(row, priority, ttl)| Operation::Retain { row, priority, ttl }),
        1 => Just(Operation::Reset),
    ]
}

const TENANTS: [&str; 3] = ["", "a", "b"];

#[derive(Clone)]
struct Known {
    salted: bool,
    media: Option<usize>,
    tokens: Vec<u32>,
    computed: usize,
}

impl Known {
    /// The identity of what a group keeps at the last of the first `n` tokens: all that is seen up to there.
    fn contents(&self, group: usize, n: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        (
            self.salted,
            self.media.filter(|at| *at < n),
            &self.tokens[..n],
            group,
        )
            .hash(&mut hasher);
        hasher.finish()
    }
}

/// The cache, the tokens of each sequence, and what the memories hold: a value for each token of a block.
pub(crate) struct World {
    pub(crate) cache: KvCache,
    known: BTreeMap<i64, Known>,
    groups: Vec<GroupSpec>,
    num_blocks: usize,
    device: Vec<[u64; 4]>,
    host: Vec<[u64; 4]>,
    /// Sequences that the transfers not yet taken are for, perhaps.
    changed: BTreeSet<i64>,
    pins: Vec<i64>,
    now_s: f64,
    follower: Follower,
}

/// What a router knows from the events alone: group, key and tier of what can be found.
#[derive(Default)]
struct Follower {
    next_seq: u64,
    found: BTreeSet<(u32, [u8; 16], String)>,
}

impl Follower {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) => {
                let named = stored
                    .keys
                    .iter()
                    .map(|key| (stored.group, *key, stored.tier.to_string()));
                self.found.extend(named);
            }
            Event::Removed { keys, group, tier } => {
                for key in keys {
                    assert!(
                        self.found.remove(&(*group, *key, tier.to_string())),
                        "removed, but not stored"
                    );
                }
            }
            Event::Moved { keys, group, to, .. } => {
                self.found
                    .extend(keys.iter().map(|key| (*group, *key, to.to_string())));
            }
            Event::Cleared { .. } => self.found.clear(),
        }
    }
}

impl World {
    pub(crate) fn new(config: &CacheConfig, policy: &str) -> Self {
        let policy = policy_by_name(policy, config.num_blocks).expect("a policy");
        let mut cache = KvCache::new(config.clone(), policy).expect("a small cache");
        cache.keep_events(1000, 7);
        Self {
            known: BTreeMap::new(),
            groups: config.groups.clone(),
            num_blocks: config.num_blocks,
            device: vec![[0; 4]; config.num_blocks],
            host: vec![[0; 4]; config.host_blocks],
            changed: BTreeSet::new(),
            pins: vec![],
            now_s: 0.0,
            follower: Follower::default(),
            cache,
        }
    }

    fn pick(&self, row: usize) -> Option<i64> {
        self.known.keys().nth(row % self.known.len().max(1)).copied()
    }

    pub(crate) fn apply(&mut self, operation: Operation) -> Result<(), CacheError> {
        match operation {
            Operation::Open {
                tokens,
                salted,
                media,
                tenant,
                matched,
            } => self.open(tokens, salted, media, tenant, matched),
            Operation::Grow { rows } => self.grow(&rows),
            Operation::Append { rows } => self.append(&rows),
            Operation::Step {
                rows,
                longest,
                transfers_fail,
            } => self.step(&rows, longest, transfers_fail),
            Operation::Truncate { row, n } => self.lower(row, n, true),
            Operation::Shrink { row, n } => self.lower(row, n, false),
            Operation::Fork { row } => self.fork(row),
            Operation::Release { row } => self.pick(row).map_or(Ok(()), |id| self.release(id)),
            Operation::Pin { row, n, ttl } => self.pin(row, n, ttl),
            Operation::Unpin => self.pins.pop().map_or(Ok(()), |pin| match self.cache.unpin(pin) {
                Err(CacheError::UnknownPin(_)) => Ok(()),
                other => other,
            }),
            Operation::Time { seconds } => {
                self.now_s += seconds;
                self.cache.set_time(self.now_s).map(drop)
            }
            Operation::Quota { tenant, blocks } => self.cache.set_quota(TENANTS[tenant], blocks),
            Operation::Retain { row, priority, ttl } => self.pick(row).map_or(Ok(()), |id| {
                self.cache.set_retention(id, Retention { priority, ttl_s: ttl })
            }),
            Operation::Reset => {
                let idle = self.cache.stats().used == 0;
                assert_eq!(self.cache.reset_prefix_cache()?, idle);
                assert!(!idle || self.cache.stats().cached == 0);
                Ok(())
            }
        }
    }

    fn open(
        &mut self,
        tokens: Vec<u32>,
        salted: bool,
        media: Option<usize>,
        tenant: usize,
        matched: bool,
    ) -> Result<(), CacheError> {
        let digest = |offset| Media {
            offset,
            digest: b"image".to_vec(),
        };
        let keys = ChainKeys {
            salt: salted.then(|| b"salt".to_vec()),
            media: media.map(digest).into_iter().collect(),
            ..ChainKeys::default()
        };
        let sequence = Sequence::new(self.cache.layout(), tokens.clone(), keys)?.with_encoder_tokens(5);
        let id = self.cache.open(sequence)?;
        let account = self.cache.account(TENANTS[tenant]);
        self.cache.set_account(id, account)?;
        let computed = if matched {
            self.cache.match_prefix(id, None)?
        } else {
            0
        };
        assert!(computed == 0 || computed < tokens.len());
        self.changed.insert(id);
        self.known.insert(
            id,
            Known {
                salted,
                media,
                tokens,
                computed,
            },
        );
        Ok(())
    }

    fn grow(&mut self, rows: &[(usize, usize)]) -> Result<(), CacheError> {
        let rows = rows.iter().filter_map(|(row, n)| Some((self.pick(*row)?, *n)));
        let (ids, ns) = rows.unzip::<_, _, Vec<_>, Vec<_>>();
        let reserved = |cache: &KvCache| {
            ids.iter()
                .map(|id| cache.num_reserved(*id))
                .collect::<Result<Vec<_>, _>>()
        };
        let before = reserved(&self.cache)?;
        let growth = self.cache.grow_many(&ids, &ns)?;
        for (row, id) in ids.iter().enumerate() {
            let granted = (0..ids.len()).filter(|other| ids[*other] == *id && growth.ok[*other]);
            let expected = before[row] + granted.map(|other| ns[other]).sum::<usize>();
            assert_eq!(self.cache.num_reserved(*id)?, expected);
            for group in &growth.groups {
                assert!(growth.ok[row] || group.offsets[row] == group.offsets[row + 1]);
            }
        }
        self.changed.extend(ids);
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

    fn step(&mut self, rows: &[usize], longest: usize, transfers_fail: bool) -> Result<(), CacheError> {
        let transfers = self.cache.take_transfers();
        let changed = std::mem::take(&mut self.changed);
        if let (true, Some(batch)) = (transfers_fail, transfers.batch) {
            let without = self.cache.finish_transfers(batch, false)?;
            assert!(without.iter().all(|id| changed.contains(id)));
            // Nobody knows which of them got what they waited for: none is committed, all end.
            return self.abandon(changed);
        }
        for transfer in transfers.moves {
            match transfer {
                Transfer::Copy { source, destination } => {
                    self.device[destination as usize] = self.device[source as usize];
                }
                Transfer::Store { source, destination } => {
                    self.host[destination as usize] = self.device[source as usize];
                }
                Transfer::Load { source, destination } => {
                    self.device[destination as usize] = self.host[source as usize];
                }
            }
        }
        let ids = rows
            .iter()
            .filter_map(|row| self.pick(*row))
            .collect::<BTreeSet<_>>();
        for id in &ids {
            let reserved = self.cache.num_reserved(*id)?;
            let known = &self.known[id];
            let end = reserved.min(known.tokens.len()).min(known.computed + longest);
            self.write(*id, end)?;
            self.known
                .entry(*id)
                .and_modify(|known| known.computed = known.computed.max(end));
        }
        let ids = ids.into_iter().collect::<Vec<_>>();
        let computed = ids.iter().map(|id| self.known[id].computed).collect::<Vec<_>>();
        self.cache.commit_many(&ids, &computed)?;
        if let Some(batch) = transfers.batch {
            self.cache.finish_transfers(batch, true)?;
        }
        Ok(())
    }

    fn abandon(&mut self, ids: BTreeSet<i64>) -> Result<(), CacheError> {
        for id in ids {
            if self.known.contains_key(&id) {
                self.release(id)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, id: i64, end: usize) -> Result<(), CacheError> {
        let known = &self.known[&id];
        for (group, spec) in self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.keeps != Keeps::Encoder)
        {
            for position in known.computed..end {
                let block = self.cache.block_table(id, group)?[position / spec.block_size];
                assert_ne!(block, NO_BLOCK, "a token of this step has no block");
                let offset = if spec.keeps == Keeps::State {
                    0
                } else {
                    position % spec.block_size
                };
                self.device[block as usize][offset] = known.contents(group, position + 1);
            }
        }
        Ok(())
    }

    /// What each group needs to go on, or holds anyway, is what was written for the sequence's own tokens.
    fn check_memory(&self) -> Result<(), CacheError> {
        for (id, known) in self.known.iter().filter(|(id, _)| !self.changed.contains(id)) {
            for (group, spec) in self
                .groups
                .iter()
                .enumerate()
                .filter(|(_, spec)| spec.keeps != Keeps::Encoder)
            {
                for (i, block) in self.cache.block_table(*id, group)?.iter().enumerate() {
                    let end = known.computed.min((i + 1) * spec.block_size);
                    if *block == NO_BLOCK || i * spec.block_size >= end {
                        continue;
                    }
                    let held = &self.device[*block as usize];
                    if spec.keeps == Keeps::State {
                        assert_eq!(
                            held[0],
                            known.contents(group, end),
                            "state of {id} after {end} tokens"
                        );
                        continue;
                    }
                    for position in i * spec.block_size..end {
                        let expected = known.contents(group, position + 1);
                        assert_eq!(
                            held[position % spec.block_size],
                            expected,
                            "sequence {id} at {position}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn lower(&mut self, row: usize, n: usize, forget: bool) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        let before = self.cache.num_reserved(id)?;
        let reserved = if forget {
            self.cache.truncate(id, n)?
        } else {
            self.cache.shrink(id, n)?
        };
        assert!(reserved == before.min(n) || reserved == 0);
        assert_eq!(self.cache.num_reserved(id), Ok(reserved));
        self.known.entry(id).and_modify(|known| {
            if forget {
                known.tokens.truncate(n);
                known.media = known.media.filter(|at| *at < n);
            }
            known.computed = known.computed.min(reserved);
        });
        Ok(())
    }

    fn fork(&mut self, row: usize) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        let child = self.cache.fork(id)?;
        let mut known = self.known[&id].clone();
        known.computed = self.cache.num_computed(child)?;
        self.known.insert(child, known);
        if self.changed.contains(&id) {
            self.changed.insert(child);
        }
        Ok(())
    }

    fn pin(&mut self, row: usize, n: usize, ttl: Option<f64>) -> Result<(), CacheError> {
        let Some(id) = self.pick(row) else { return Ok(()) };
        let (pin, kept) = self.cache.pin(id, n, ttl)?;
        assert!(kept <= n);
        self.pins.push(pin);
        Ok(())
    }

    fn release(&mut self, id: i64) -> Result<(), CacheError> {
        self.known.remove(&id);
        self.cache.release(id)?;
        assert_eq!(self.cache.release(id), Err(CacheError::UnknownSequence(id)));
        Ok(())
    }

    pub(crate) fn check(&mut self) {
        self.follow();
        assert_eq!(self.cache.check(), Ok(()));
        assert_eq!(self.check_memory(), Ok(()));
        let stats = self.cache.stats();
        assert_eq!(stats.free + stats.cached + stats.used, self.num_blocks);
    }

    /// A follower that saw all events knows what a snapshot tells.
    fn follow(&mut self) {
        let batch = self
            .cache
            .events_since(self.follower.next_seq, 1000)
            .expect("the log is long");
        for event in &batch.events {
            self.follower.apply(event);
        }
        self.follower.next_seq = batch.next_seq();
        let snapshot = self.cache.events_snapshot().expect("the log is kept");
        assert_eq!(snapshot.seq, self.follower.next_seq);
        let mut fresh = Follower::default();
        snapshot.events.iter().for_each(|event| fresh.apply(event));
        assert_eq!(fresh.found, self.follower.found);
    }

    /// Ends everything: nothing is held any more.
    pub(crate) fn close(mut self) {
        let ids = self.known.keys().copied().collect::<Vec<_>>();
        assert_eq!(self.cache.release_many(&ids), Ok(()));
        for pin in std::mem::take(&mut self.pins) {
            assert!(matches!(
                self.cache.unpin(pin),
                Ok(()) | Err(CacheError::UnknownPin(_))
            ));
        }
        assert_eq!(self.cache.check(), Ok(()));
        assert_eq!((self.cache.stats().used, self.cache.stats().pinned), (0, 0));
    }
}
