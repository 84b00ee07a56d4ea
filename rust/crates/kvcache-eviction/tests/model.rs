//! Every policy against a model that keeps a plain list and scans it, under random operations.

use kvcache_eviction::{BlockId, BlockInfo, EvictionPolicy, PolicyError, policy_by_name};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Insert(BlockId, BlockInfo),
    Touch(BlockId),
    Remove(BlockId),
    Forget(BlockId),
    Evict,
    Update(BlockId, BlockInfo),
    SetTime(f64),
}

#[derive(Debug, Clone, Copy)]
struct Cached {
    block: BlockId,
    info: BlockInfo,
    used: u64,
    value: f64,
}

#[derive(Debug, Clone)]
struct Model {
    policy: &'static str,
    now_s: f64,
    age: f64,
    used: u64,
    cached: Vec<Cached>,
    reuses: Vec<u32>,
}

impl Model {
    fn new(policy: &'static str, num_blocks: usize) -> Self {
        Self {
            policy,
            now_s: f64::NEG_INFINITY,
            age: 0.0,
            used: 0,
            cached: Vec::new(),
            reuses: vec![0; num_blocks],
        }
    }

    fn position(&self, block: BlockId) -> Result<Option<usize>, PolicyError> {
        if block as usize >= self.reuses.len() {
            return Err(PolicyError::OutOfRange(block));
        }
        Ok(self.cached.iter().position(|cached| cached.block == block))
    }

    fn value(&self, block: BlockId, info: &BlockInfo) -> f64 {
        let reuses = f64::from(self.reuses[block as usize]);
        match self.policy {
            "lfu" => self.age + 1.0 + reuses.min(254.0),
            "cost" => self.age + (1.0 + reuses) * f64::from(info.cost),
            _ => 0.0,
        }
    }

    fn key(&self, cached: &Cached) -> (f64, f64, u64) {
        let expired = cached.info.expires_at.is_some_and(|at| at <= self.now_s);
        match self.policy {
            "lru" => (0.0, 0.0, cached.used),
            "priority+ttl" => (f64::from(!expired), f64::from(cached.info.priority), cached.used),
            _ => (cached.value, 0.0, cached.used),
        }
    }

    fn push(&mut self, block: BlockId, info: BlockInfo) {
        self.used += 1;
        self.cached.push(Cached {
            block,
            info,
            used: self.used,
            value: self.value(block, &info),
        });
    }

    fn victim(&self) -> Option<usize> {
        let waits = |of: &Cached| self.cached.iter().any(|c| c.info.parent == Some(of.block));
        let whole = 0..self.cached.len();
        let mut candidates = whole.clone().collect::<Vec<_>>();
        if ["priority+ttl", "cost"].contains(&self.policy) {
            candidates.retain(|at| !waits(&self.cached[*at]));
            if candidates.is_empty() {
                candidates = whole.collect();
            }
        }
        let key = |at: &usize| self.key(&self.cached[*at]);
        candidates
            .into_iter()
            .min_by(|a, b| key(a).partial_cmp(&key(b)).expect("keys are finite"))
    }

    fn evict(&mut self) -> Option<BlockId> {
        let victim = self.cached.remove(self.victim()?);
        self.reuses[victim.block as usize] = 0;
        self.age = self.age.max(victim.value);
        Some(victim.block)
    }

    fn order(&self) -> Vec<BlockId> {
        let mut copy = self.clone();
        std::iter::from_fn(|| copy.evict()).collect()
    }

    fn apply(&mut self, operation: Operation) -> Result<Option<BlockId>, PolicyError> {
        match operation {
            Operation::Insert(block, info) => {
                if self.position(block)?.is_some() {
                    return Err(PolicyError::IsCached(block));
                }
                info.validate(block, self.reuses.len())?;
                self.push(block, info);
            }
            Operation::Touch(block) => {
                let position = self.position(block)?;
                self.reuses[block as usize] += 1;
                if let Some(at) = position {
                    let cached = self.cached.remove(at);
                    self.push(block, cached.info);
                }
            }
            Operation::Remove(block) => {
                let at = self.position(block)?.ok_or(PolicyError::NotCached(block))?;
                self.cached.remove(at);
            }
            Operation::Forget(block) => {
                if self.position(block)?.is_some() {
                    return Err(PolicyError::IsCached(block));
                }
                self.reuses[block as usize] = 0;
            }
            Operation::Evict => return Ok(self.evict()),
            Operation::Update(block, info) => {
                let at = self.position(block)?.ok_or(PolicyError::NotCached(block))?;
                info.validate(block, self.reuses.len())?;
                self.cached[at].info = info;
                if self.policy == "cost" {
                    self.cached[at].value = self.value(block, &info);
                }
            }
            Operation::SetTime(now_s) => {
                if now_s < self.now_s && self.policy == "priority+ttl" {
                    let before_s = self.now_s;
                    return Err(PolicyError::BadTime { now_s, before_s });
                }
                self.now_s = now_s;
            }
        }
        Ok(None)
    }
}

fn apply(policy: &mut dyn EvictionPolicy, operation: Operation) -> Result<Option<BlockId>, PolicyError> {
    match operation {
        Operation::Insert(block, info) => policy.insert(block, &info)?,
        Operation::Touch(block) => policy.touch(block)?,
        Operation::Remove(block) => policy.remove(block)?,
        Operation::Forget(block) => policy.forget(block)?,
        Operation::Evict => return policy.evict(),
        Operation::Update(block, info) => policy.update(block, &info)?,
        Operation::SetTime(now_s) => policy.set_time(now_s)?,
    }
    Ok(None)
}

/// Few values, so that ties, circles of parents, ids outside the pool and refused fields are frequent.
fn decode(bits: u32, max_reach: u32) -> Operation {
    let field = |at: u32, below: u32| (bits >> at) % 64 % below;
    let block = field(4, max_reach);
    let info = BlockInfo {
        priority: field(10, 3) as i32 - 1,
        expires_at: [None, Some(1.0), Some(2.0), Some(4.0), Some(f64::INFINITY)][match field(16, 16) {
            at @ 0..4 => at as usize,
            15 => 4,
            _ => 0,
        }],
        cost: [1.0, 1.0, 2.5, 7.0, 0.0, 3.0, 1e9, -1.0][field(22, 64).trailing_ones() as usize],
        parent: Some(field(26, 2 * max_reach)).filter(|parent| *parent < max_reach),
    };
    match bits % 16 {
        0..=5 => Operation::Insert(block, info),
        6..=8 => Operation::Touch(block),
        9 | 10 => Operation::Remove(block),
        11 => Operation::Forget(block),
        12 | 13 => Operation::Evict,
        14 => Operation::Update(block, info),
        _ => Operation::SetTime(f64::from(field(4, 6))),
    }
}

fn compare(
    policy: &mut dyn EvictionPolicy,
    model: &mut Model,
    operation: Operation,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(apply(policy, operation), model.apply(operation));
    prop_assert_eq!(policy.check(), Ok(()));
    prop_assert_eq!(policy.len(), model.cached.len());
    prop_assert_eq!(policy.is_empty(), model.cached.is_empty());
    Ok(())
}

/// 14 000 sequences for each policy, 56 000 together; the order is compared after each operation.
fn agrees(name: &'static str) {
    let sequences = (1..8_usize, prop::collection::vec(any::<u32>(), 0..28));
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(14_000)
    };
    proptest!(config, |((size, operations) in sequences)| {
        let mut policy = policy_by_name(name, size).expect("a small pool");
        let mut model = Model::new(name, size);
        for bits in operations {
            compare(&mut *policy, &mut model, decode(bits, size as u32 + 1))?;
            prop_assert_eq!(policy.order(), Ok(model.order()));
        }
    });
}

#[test]
fn lru_agrees_with_the_model() {
    agrees("lru");
}

#[test]
fn lfu_agrees_with_the_model() {
    agrees("lfu");
}

#[test]
fn priority_ttl_agrees_with_the_model() {
    agrees("priority+ttl");
}

#[test]
fn cost_aware_agrees_with_the_model() {
    agrees("cost");
}

/// Long enough to go round the ring of buckets of LFU, to reach its cap, and for deep heaps.
#[test]
fn long_runs_agree_with_the_model() {
    for name in kvcache_eviction::POLICY_NAMES {
        let size = 40;
        let mut policy = policy_by_name(name, size).expect("a small pool");
        let mut model = Model::new(name, size);
        let mut state = 0x2545_F491_u32;
        let mut evicted = 0;
        for step in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let operation = match step % 5 {
                0 => Operation::Touch(state % 3),
                1 if step % 25 == 1 => Operation::Evict,
                _ => decode(state, size as u32 + 1),
            };
            evicted += usize::from(matches!(operation, Operation::Evict));
            compare(&mut *policy, &mut model, operation).expect("the policy and the model agree");
            if step % 97 == 0 {
                assert_eq!(policy.order(), Ok(model.order()), "{name} at step {step}");
            }
        }
        assert!(evicted > 2_000);
    }
}
