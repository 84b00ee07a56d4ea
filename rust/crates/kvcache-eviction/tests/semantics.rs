//! What each policy promises, one promise a test.

use kvcache_eviction::{
    BlockId, BlockInfo, CostAware, EvictionPolicy, Lfu, Lru, MAX_BLOCKS, POLICY_NAMES, PolicyError,
    PriorityTtl, evict_verified, policy_by_name,
};

const PLAIN: BlockInfo = BlockInfo {
    priority: 0,
    expires_at: None,
    cost: 1.0,
    parent: None,
};

fn priority(priority: i32) -> BlockInfo {
    BlockInfo { priority, ..PLAIN }
}

fn expiring(at: f64) -> BlockInfo {
    BlockInfo {
        expires_at: Some(at),
        ..PLAIN
    }
}

fn costing(cost: f32) -> BlockInfo {
    BlockInfo { cost, ..PLAIN }
}

fn each(num_blocks: usize) -> impl Iterator<Item = Box<dyn EvictionPolicy>> {
    let make = move |name: &&str| policy_by_name(name, num_blocks).expect("a small pool");
    POLICY_NAMES.iter().map(make)
}

/// A prefix hit takes a cached block, and its owner leaves again.
fn reuse(policy: &mut dyn EvictionPolicy, block: BlockId, info: &BlockInfo) -> Result<(), PolicyError> {
    policy.touch(block)?;
    policy.remove(block)?;
    policy.insert(block, info)
}

#[test]
fn names_lead_to_policies_of_that_name() {
    let names = each(1).map(|policy| policy.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names, POLICY_NAMES);
    let unknown = policy_by_name("fifo", 1).map(drop).expect_err("there is no fifo");
    assert_eq!(
        unknown.to_string(),
        "eviction policy \"fifo\" is unknown; known are lru, lfu, priority+ttl, cost"
    );
}

#[test]
fn sizes_that_ids_cannot_name_are_refused() {
    for name in POLICY_NAMES {
        for size in [0, MAX_BLOCKS + 1] {
            assert_eq!(
                policy_by_name(name, size).map(drop),
                Err(PolicyError::BadSize(size))
            );
        }
    }
}

#[test]
fn every_policy_refuses_the_same_input_and_stays_as_it_was() -> Result<(), PolicyError> {
    let bad = [
        (costing(f32::NAN), "cost"),
        (costing(f32::INFINITY), "cost"),
        (costing(-0.5), "cost"),
        (expiring(f64::NAN), "expires_at"),
        (expiring(f64::NEG_INFINITY), "expires_at"),
        (
            BlockInfo {
                parent: Some(4),
                ..PLAIN
            },
            "parent",
        ),
        (
            BlockInfo {
                parent: Some(1),
                ..PLAIN
            },
            "parent",
        ),
    ];
    for mut policy in each(4) {
        policy.insert(0, &PLAIN)?;
        for (info, expected) in bad {
            let error = policy.insert(1, &info).expect_err("a bad field");
            assert!(matches!(error, PolicyError::BadInfo { block: 1, field, .. } if field == expected));
        }
        assert!(policy.update(0, &costing(-1.0)).is_err());
        assert_eq!(policy.insert(4, &PLAIN), Err(PolicyError::OutOfRange(4)));
        assert_eq!(policy.touch(4), Err(PolicyError::OutOfRange(4)));
        assert_eq!(policy.insert(0, &PLAIN), Err(PolicyError::IsCached(0)));
        assert_eq!(policy.forget(0), Err(PolicyError::IsCached(0)));
        assert_eq!(policy.remove(1), Err(PolicyError::NotCached(1)));
        assert_eq!(policy.update(1, &PLAIN), Err(PolicyError::NotCached(1)));
        for now_s in [f64::NAN, f64::INFINITY] {
            assert!(matches!(policy.set_time(now_s), Err(PolicyError::BadTime { .. })));
        }
        assert_eq!((policy.order()?, policy.len()), (vec![0], 1));
        policy.check()?;
    }
    Ok(())
}

#[test]
fn a_chain_is_evicted_from_its_end() -> Result<(), PolicyError> {
    for mut policy in each(8) {
        // Two chains that share blocks 0 and 1: 0-1-2-3 and 0-1-4-5, each given back deepest block first.
        let parents = [None, Some(0), Some(1), Some(2), Some(1), Some(4)];
        for block in [3, 2, 5, 4, 1, 0] {
            let parent = parents[block as usize];
            policy.insert(block, &BlockInfo { parent, ..PLAIN })?;
        }
        assert_eq!(policy.order()?, [3, 2, 5, 4, 1, 0], "{}", policy.name());
        // A hit on the first two blocks, deepest first.
        for block in [1, 0] {
            let parent = parents[block as usize];
            reuse(&mut *policy, block, &BlockInfo { parent, ..PLAIN })?;
        }
        assert_eq!(policy.order()?, [3, 2, 5, 4, 1, 0], "{}", policy.name());
    }
    Ok(())
}

#[test]
fn blocks_behind_others_go_first_whatever_they_are_worth() -> Result<(), PolicyError> {
    for name in ["priority+ttl", "cost"] {
        let mut policy = policy_by_name(name, 4)?;
        let dear = BlockInfo {
            priority: 9,
            cost: 100.0,
            parent: Some(0),
            ..PLAIN
        };
        policy.insert(1, &dear)?;
        policy.insert(0, &PLAIN)?;
        policy.insert(
            2,
            &BlockInfo {
                priority: 1,
                cost: 2.0,
                ..PLAIN
            },
        )?;
        assert_eq!(policy.order()?, [2, 1, 0], "{name}");
        // While block 1 is in use it does not hold block 0 back; the caller has block 0 in use as well then.
        policy.remove(1)?;
        assert_eq!(policy.order()?, [0, 2], "{name}");
    }
    Ok(())
}

#[test]
fn a_circle_of_parents_does_not_stop_eviction() -> Result<(), PolicyError> {
    for mut policy in each(3) {
        for block in 0..3 {
            policy.insert(
                block,
                &BlockInfo {
                    parent: Some((block + 1) % 3),
                    ..PLAIN
                },
            )?;
        }
        policy.check()?;
        let mut order = policy.order()?;
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2], "{}", policy.name());
    }
    Ok(())
}

#[test]
fn lru_goes_by_release_and_touch() -> Result<(), PolicyError> {
    let mut policy = Lru::new(4)?;
    for block in [2, 0, 3, 1] {
        policy.insert(block, &priority(block as i32))?;
    }
    policy.touch(0)?;
    reuse(&mut policy, 2, &PLAIN)?;
    assert_eq!(policy.order()?, [3, 1, 0, 2]);
    assert_eq!(policy.evict()?, Some(3));
    Ok(())
}

#[test]
fn lfu_counts_reuse_while_cached_and_in_use() -> Result<(), PolicyError> {
    let mut policy = Lfu::new(4)?;
    policy.touch(3)?; // in use, shared by a second owner
    policy.touch(3)?;
    for block in [3, 0, 1] {
        policy.insert(block, &PLAIN)?;
    }
    reuse(&mut policy, 0, &PLAIN)?;
    assert_eq!(policy.order()?, [1, 0, 3]);
    assert_eq!([0, 1, 3].map(|block| policy.reuses(block)), [1, 0, 2]);
    Ok(())
}

#[test]
fn reuse_is_forgotten_with_the_contents() -> Result<(), PolicyError> {
    let mut lfu = Lfu::new(2)?;
    let mut cost = CostAware::new(2)?;
    let policies: [&mut dyn EvictionPolicy; 2] = [&mut lfu, &mut cost];
    for policy in policies {
        for _ in 0..5 {
            policy.touch(0)?;
            policy.touch(1)?;
        }
        policy.insert(0, &PLAIN)?;
        assert_eq!(policy.evict()?, Some(0));
        policy.forget(1)?;
    }
    assert_eq!([lfu.reuses(0), lfu.reuses(1)], [0, 0]);
    assert_eq!([cost.reuses(0), cost.reuses(1)], [0, 0]);
    Ok(())
}

/// Turns the cache over with blocks used once until block 0 goes; returns the number of evictions.
fn evictions_until_gone(policy: &mut dyn EvictionPolicy, reuses: usize) -> Result<usize, PolicyError> {
    for _ in 0..reuses {
        policy.touch(0)?;
    }
    for block in 0..11 {
        policy.insert(block, &PLAIN)?;
    }
    for evictions in 1..100_000 {
        let victim = policy.evict()?.expect("blocks are cached");
        if victim == 0 {
            return Ok(evictions);
        }
        policy.insert(victim, &PLAIN)?;
    }
    panic!("block 0 stays for ever");
}

#[test]
fn a_block_that_was_hot_once_ages_away() -> Result<(), PolicyError> {
    // Ten other blocks: each turnover raises the age by one, so 20 reuses last for 20 turnovers.
    assert_eq!(evictions_until_gone(&mut Lfu::new(11)?, 20)?, 201);
    assert_eq!(evictions_until_gone(&mut CostAware::new(11)?, 20)?, 201);
    // The count of LFU ends at 254 reuses.
    assert_eq!(evictions_until_gone(&mut Lfu::new(11)?, 254)?, 2541);
    assert_eq!(evictions_until_gone(&mut Lfu::new(11)?, 5000)?, 2541);
    Ok(())
}

#[test]
fn priority_then_recency() -> Result<(), PolicyError> {
    let mut policy = PriorityTtl::new(8)?;
    for (block, value) in [(0, 5), (1, -3), (2, 5), (3, 0), (4, i32::MIN), (5, i32::MAX)] {
        policy.insert(block, &priority(value))?;
    }
    assert_eq!(policy.order()?, [4, 1, 3, 0, 2, 5]);
    policy.touch(0)?;
    policy.update(3, &priority(6))?;
    assert_eq!(policy.order()?, [4, 1, 2, 0, 3, 5]);
    Ok(())
}

#[test]
fn expired_blocks_go_first() -> Result<(), PolicyError> {
    let mut policy = PriorityTtl::new(8)?;
    policy.insert(0, &PLAIN)?;
    policy.insert(
        1,
        &BlockInfo {
            priority: 7,
            ..expiring(10.0)
        },
    )?;
    policy.insert(
        2,
        &BlockInfo {
            priority: 3,
            ..expiring(20.0)
        },
    )?;
    assert_eq!(policy.order()?, [0, 2, 1]);
    policy.set_time(9.999)?;
    assert_eq!(policy.order()?, [0, 2, 1]);
    policy.set_time(10.0)?; // expires_at <= now
    assert_eq!(policy.order()?, [1, 0, 2]);
    policy.set_time(25.0)?; // both expired: by priority among themselves
    assert_eq!(policy.order()?, [2, 1, 0]);
    policy.update(2, &expiring(30.0))?; // kept alive; back among the rest, with its old recency
    assert_eq!(policy.order()?, [1, 0, 2]);
    policy.insert(3, &expiring(24.0))?; // expired before it became cached
    assert_eq!(policy.order()?, [3, 1, 0, 2]);
    policy.check()
}

#[test]
fn time_does_not_go_back() -> Result<(), PolicyError> {
    let mut policy = PriorityTtl::new(2)?;
    policy.set_time(5.0)?;
    policy.set_time(5.0)?;
    let error = PolicyError::BadTime {
        now_s: 4.0,
        before_s: 5.0,
    };
    assert_eq!(policy.set_time(4.0), Err(error));
    policy.insert(0, &expiring(4.5))?;
    policy.check()
}

#[test]
fn cheap_and_unused_blocks_go_before_dear_and_reused_ones() -> Result<(), PolicyError> {
    let mut policy = CostAware::new(4)?;
    policy.insert(0, &costing(8.0))?;
    policy.insert(1, &costing(3.0))?;
    policy.insert(2, &costing(2.0))?;
    assert_eq!(policy.order()?, [2, 1, 0]);
    for _ in 0..4 {
        reuse(&mut policy, 2, &costing(2.0))?; // 5 uses x 2 > 8
    }
    assert_eq!(policy.order()?, [1, 0, 2]);
    assert_eq!(policy.evict()?, Some(1));
    assert!((policy.inflation() - 3.0).abs() < f64::EPSILON);
    policy.insert(1, &costing(4.0))?; // H = 3 + 4, below 8
    assert_eq!(policy.order()?, [1, 0, 2]);
    policy.insert(3, &costing(6.0))?; // H = 3 + 6, above 8: what was cached long ago gives way
    assert_eq!(policy.order()?, [1, 0, 3, 2]);
    policy.update(0, &costing(20.0))?;
    assert_eq!(policy.order()?, [1, 3, 2, 0]);
    Ok(())
}

#[test]
fn arrays_have_the_documented_size_and_do_not_grow() -> Result<(), PolicyError> {
    let n = 10_000;
    for (mut policy, bytes_per_block) in each(n).zip([8, 10, 48, 40]) {
        let before = policy.memory_bytes().expect("known for these policies");
        let fixed = if policy.name() == "lfu" { 2048 } else { 0 };
        assert_eq!(before, bytes_per_block * n + fixed, "{}", policy.name());
        for block in 0..n as BlockId {
            policy.insert(block, &expiring(f64::from(block)))?;
        }
        policy.set_time(5_000.0)?;
        while policy.evict()?.is_some() {}
        assert_eq!(policy.memory_bytes(), Some(before));
    }
    Ok(())
}

#[test]
fn ten_million_blocks_in_lru_take_eighty_megabytes() -> Result<(), PolicyError> {
    assert_eq!(Lru::new(10_000_000)?.memory_bytes(), Some(80_000_000));
    Ok(())
}

/// As an adapter for a policy in another language would be: it may fail and it may be wrong.
#[derive(Debug)]
struct Scripted(Vec<Result<Option<BlockId>, PolicyError>>);

impl EvictionPolicy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn insert(&mut self, block: BlockId, _info: &BlockInfo) -> Result<(), PolicyError> {
        self.0.push(Ok(Some(block)));
        Ok(())
    }

    fn remove(&mut self, block: BlockId) -> Result<(), PolicyError> {
        Err(PolicyError::NotCached(block))
    }

    fn evict(&mut self) -> Result<Option<BlockId>, PolicyError> {
        self.0.pop().unwrap_or(Ok(None))
    }

    fn order(&self) -> Result<Vec<BlockId>, PolicyError> {
        Ok(Vec::new())
    }
}

#[test]
fn wrong_victims_of_policies_from_elsewhere_are_found_out() {
    let failed = PolicyError::Failed {
        policy: "scripted".to_owned(),
        reason: "ValueError: no".to_owned(),
    };
    let mut policy = Scripted(vec![Err(failed.clone()), Ok(None), Ok(Some(9)), Ok(Some(1))]);
    let mut evict = |cached: usize| evict_verified(&mut policy, cached, |block| block == 1);
    assert_eq!(evict(2), Ok(Some(1)));
    let wrong = PolicyError::WrongVictim {
        policy: "scripted".to_owned(),
        block: 9,
    };
    assert_eq!(evict(1), Err(wrong));
    let none = PolicyError::NoVictim {
        policy: "scripted".to_owned(),
        cached: 1,
    };
    assert_eq!(evict(1), Err(none));
    assert_eq!(evict(1), Err(failed));
    assert_eq!(evict(0), Ok(None));
}
