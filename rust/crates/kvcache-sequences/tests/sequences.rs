//! Sequences under random operations on a simulated device and host: every invariant holds after each, nobody reads what
//! was not written for its own tokens, and refused calls change nothing.
//!
//! The exact answers are checked against the plain-Python model of `packages/kvcache/tests`.

mod world;

use kvcache_sequences::{
    CacheConfig, CacheError, ChainKeys, GroupSpec, Keeps, KvCache, Layout, Sequence, policy_by_name,
};
use proptest::prelude::*;
use world::{World, operation};

fn group() -> impl Strategy<Value = GroupSpec> {
    let keeps = prop_oneof![
        3 => Just(Keeps::All),
        2 => (1..9_usize).prop_map(Keeps::Window),
        1 => (1..9_usize).prop_map(Keeps::Chunk),
        1 => Just(Keeps::State),
    ];
    (1..5_usize, keeps).prop_map(|(block_size, keeps)| GroupSpec { block_size, keeps })
}

fn groups() -> impl Strategy<Value = Vec<GroupSpec>> {
    prop_oneof![
        3 => (1..5_usize).prop_map(|size| vec![GroupSpec::full(size)]),
        4 => prop::collection::vec(group(), 1..4),
        1 => (group(), 1..4_usize).prop_map(|(group, block_size)| {
            vec![group, GroupSpec { block_size, keeps: Keeps::Encoder }]
        }),
    ]
}

fn config() -> impl Strategy<Value = CacheConfig> {
    (
        groups(),
        2..16_usize,
        any::<bool>(),
        prop_oneof![Just(0), 1..8_usize],
    )
        .prop_map(|(groups, num_blocks, partial, host_blocks)| CacheConfig {
            partial_reuse: partial && groups.len() == 1 && groups[0].keeps == Keeps::All,
            groups,
            num_blocks,
            prefix_caching: true,
            host_blocks,
        })
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["lru", "lfu", "priority+ttl", "cost"])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn every_invariant_holds(
        config in config(), policy in policy(), operations in prop::collection::vec(operation(), 0..60),
    ) {
        let mut world = World::new(&config, policy);
        for operation in operations {
            prop_assert_eq!(world.apply(operation), Ok(()));
            world.check();
        }
        world.close();
    }
}

fn small(config: CacheConfig) -> KvCache {
    let policy = policy_by_name("lru", config.num_blocks).expect("a policy");
    KvCache::new(config, policy).expect("a small cache")
}

fn open(cache: &mut KvCache, tokens: &[u32]) -> i64 {
    let sequence = Sequence::new(cache.layout(), tokens.to_vec(), ChainKeys::default()).expect("a sequence");
    cache.open(sequence).expect("an id")
}

/// Opens a sequence of these tokens, computes all and releases it.
fn remember(cache: &mut KvCache, tokens: &[u32]) {
    let id = open(cache, tokens);
    cache.match_prefix(id, None).expect("a match");
    let missing = tokens.len() - cache.num_reserved(id).expect("open");
    assert_eq!(cache.grow(id, missing), Ok(true));
    let batch = cache.take_transfers().batch;
    if let Some(batch) = batch {
        assert_eq!(cache.finish_transfers(batch, true), Ok(vec![]));
    }
    cache.commit(id, tokens.len()).expect("a commit");
    cache.release(id).expect("open");
}

#[test]
fn a_sequence_of_another_layout_is_refused() {
    let mut cache = small(CacheConfig::full(4, 2));
    let layouts = [
        Layout::new(vec![GroupSpec::full(2)], true),
        Layout::new(vec![GroupSpec::full(4)], false),
    ];
    for other in layouts {
        let other = std::sync::Arc::new(other.expect("a layout"));
        let sequence = Sequence::new(&other, vec![1], ChainKeys::default()).expect("a sequence");
        let refused = cache.open(sequence);
        assert!(matches!(
            refused,
            Err(CacheError::InvalidArgument {
                field: "sequence",
                ..
            })
        ));
    }
}

#[test]
fn impossible_groups_are_refused() {
    let window = |n| GroupSpec {
        block_size: 4,
        keeps: Keeps::Window(n),
    };
    let encoder = GroupSpec {
        block_size: 4,
        keeps: Keeps::Encoder,
    };
    for (groups, field) in [
        (vec![], "groups"),
        (vec![encoder], "groups"),
        (vec![GroupSpec::full(4); 256], "groups"),
        (vec![GroupSpec::full(0)], "block_size"),
        (vec![window(0)], "window"),
        (
            vec![GroupSpec::full(i32::MAX as usize), GroupSpec::full(2)],
            "groups",
        ),
    ] {
        let refused = Layout::new(groups, true);
        assert!(matches!(refused, Err(CacheError::InvalidArgument { field: named, .. }) if named == field));
    }
}

#[test]
fn a_block_cannot_be_found_by_contents_that_its_sole_owner_may_overwrite() {
    let mut cache = small(CacheConfig::full(4, 4));
    let owner = open(&mut cache, &[1, 2, 3, 4, 5]);
    assert_eq!(cache.grow(owner, 4), Ok(true));
    assert_eq!(cache.commit(owner, 4), Ok(()));
    assert_eq!(cache.shrink(owner, 2), Ok(2));
    let reader = open(&mut cache, &[1, 2, 3, 4, 5]);
    assert_eq!(cache.match_prefix(reader, None), Ok(4));
    assert_eq!(cache.release(reader), Ok(()));
    assert_eq!(cache.grow(owner, 1), Ok(true));
    assert_eq!(cache.block_table(owner, 0), Ok([0].as_slice()));
    let reader = open(&mut cache, &[1, 2, 3, 4, 5]);
    assert_eq!(cache.match_prefix(reader, None), Ok(0));
    assert_eq!(cache.check(), Ok(()));
}

#[test]
fn a_hit_is_one_that_every_group_can_go_on_from() {
    // Full attention in blocks of 2, a state every 4, a window of 3 in blocks of 2: hits are multiples of 4.
    let groups = vec![
        GroupSpec::full(2),
        GroupSpec {
            block_size: 4,
            keeps: Keeps::State,
        },
        GroupSpec {
            block_size: 2,
            keeps: Keeps::Window(3),
        },
    ];
    let mut cache = small(CacheConfig {
        groups,
        ..CacheConfig::full(2, 32)
    });
    let tokens = (0..11).collect::<Vec<u32>>();
    remember(&mut cache, &tokens);
    let id = open(&mut cache, &tokens);
    assert_eq!(cache.match_prefix(id, None), Ok(8));
    let held = |cache: &KvCache, group| {
        let table = cache.block_table(id, group).expect("a table");
        table
            .iter()
            .map(|block| *block != kvcache_sequences::NO_BLOCK)
            .collect::<Vec<_>>()
    };
    assert_eq!(held(&cache, 0), [true; 4]);
    assert_eq!(held(&cache, 1), [false, true]);
    assert_eq!(held(&cache, 2), [false, false, false, true]);
    assert_eq!(cache.check(), Ok(()));
}

#[test]
fn a_window_gives_back_what_it_has_left() {
    let window = GroupSpec {
        block_size: 2,
        keeps: Keeps::Window(4),
    };
    let mut cache = small(CacheConfig {
        groups: vec![window],
        ..CacheConfig::full(2, 8)
    });
    let id = open(&mut cache, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(cache.grow(id, 8), Ok(true));
    assert_eq!(cache.stats().used, 4);
    assert_eq!(cache.commit(id, 8), Ok(()));
    // Token 8 sees tokens 5 to 8: the blocks of tokens 0 to 3 are not needed.
    assert_eq!((cache.stats().used, cache.stats().cached), (2, 2));
    // Going on from token 6 needs tokens 3 to 5, and 3 is gone.
    assert_eq!(cache.shrink(id, 6), Ok(0));
    assert_eq!(cache.match_prefix(id, None), Ok(6));
    assert_eq!(cache.check(), Ok(()));
}

#[test]
fn the_first_tokens_of_a_block_are_copied() {
    let config = CacheConfig {
        partial_reuse: true,
        ..CacheConfig::full(4, 8)
    };
    let mut cache = small(config);
    remember(&mut cache, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for (tokens, hit) in [
        ([1, 2, 3, 4, 5, 6, 0, 0].as_slice(), 6),
        (&[1, 2, 3, 4, 5, 6, 7, 8], 7),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 10),
        (&[1, 2, 0], 2),
        (&[7, 8, 9], 0),
    ] {
        let id = open(&mut cache, tokens);
        assert_eq!(cache.match_prefix(id, None), Ok(hit), "{tokens:?}");
        assert_eq!(cache.take_transfers().moves.len(), usize::from(hit % 4 > 0));
        assert_eq!(cache.check(), Ok(()));
        assert_eq!(cache.shrink(id, 0), Ok(0));
        cache.release(id).expect("open");
    }
}

#[test]
fn evicted_blocks_come_back_from_the_host() {
    let mut cache = small(CacheConfig {
        host_blocks: 8,
        ..CacheConfig::full(2, 4)
    });
    remember(&mut cache, &[1, 2, 3, 4, 5, 6, 7]);
    remember(&mut cache, &[9, 9, 9, 9, 9, 9, 9, 9]);
    assert_eq!(cache.stats().host_used, 3);
    let id = open(&mut cache, &[1, 2, 3, 4, 5, 6, 7]);
    // The loads and the stores that make room for them travel in one batch, in order.
    assert_eq!(cache.match_prefix(id, None), Ok(6));
    assert_eq!(cache.stats().host_hits, 6);
    let transfers = cache.take_transfers();
    let batch = transfers.batch.expect("the host tier is in it");
    assert_eq!(cache.finish_transfers(batch, true), Ok(vec![]));
    assert!(cache.finish_transfers(batch, true).is_err(), "a batch ends once");
    assert_eq!(cache.check(), Ok(()));
}

#[test]
fn pins_hold_until_lifted_or_run_out() {
    let mut cache = small(CacheConfig::full(2, 4));
    let id = open(&mut cache, &[1, 2, 3, 4, 5]);
    assert_eq!(cache.grow(id, 5), Ok(true));
    assert_eq!(cache.commit(id, 5), Ok(()));
    cache.set_pin_quota(None, Some(3));
    let (pin, kept) = cache.pin(id, 5, None).expect("a pin");
    assert_eq!(kept, 4);
    assert_eq!(
        cache.pin(id, 5, None),
        Err(CacheError::PinQuota { wanted: 2, room: 1 })
    );
    assert_eq!(cache.pin(id, 3, Some(10.0)).expect("a pin").1, 2);
    cache.release(id).expect("open");
    assert_eq!((cache.stats().used, cache.stats().pinned), (2, 3));
    assert_eq!(cache.set_time(9.0), Ok(0));
    assert_eq!(cache.set_time(10.0), Ok(1));
    assert_eq!(cache.stats().pinned, 2);
    assert_eq!(cache.unpin(pin), Ok(()));
    assert_eq!(cache.unpin(pin), Err(CacheError::UnknownPin(pin)));
    assert_eq!((cache.stats().used, cache.stats().cached), (0, 2));
    assert_eq!(cache.check(), Ok(()));
}

#[test]
fn a_tenant_at_its_quota_evicts_its_own() {
    let mut cache = small(CacheConfig::full(1, 6));
    cache.set_quota("a", Some(2)).expect("a quota");
    let account = cache.account("a");
    let ids = [[1_u32, 2], [3, 4]].map(|tokens| {
        let id = open(&mut cache, &tokens);
        cache.set_account(id, account).expect("open");
        assert_eq!(cache.grow(id, 2), Ok(true));
        assert_eq!(cache.grow(id, 1), Ok(false), "a third block is above the quota");
        cache.commit(id, 2).expect("a commit");
        cache.release(id).expect("open");
        id
    });
    assert_ne!(ids[0], ids[1]);
    assert_eq!((cache.usage("a"), cache.stats().free), (2, 4));
    cache.set_quota("a", Some(1)).expect("a quota");
    assert_eq!((cache.usage("a"), cache.stats().free), (1, 5));
    assert_eq!(cache.check(), Ok(()));
}
