//! The index under random operations against a plain model, and its rules one by one.

mod model;

use kvcache_tiers::{Key, Outcome, Phase, Source, TierConfig, TierError, TierId, TierIndex};
use proptest::prelude::*;

use crate::model::Model;

const KEYS: [Key; 6] = [0, 1, 2, 3, 4, u128::MAX];
const CAPACITIES: [Option<usize>; 3] = [Some(2), Some(3), None];

#[derive(Debug, Clone)]
enum Operation {
    Insert(Key, TierId),
    Store(Key, TierId),
    Load(Key, Option<TierId>),
    Move(Key, TierId, TierId, Source),
    Demote(Key, TierId, Source),
    Promote(Key, TierId),
    StoreMany(Vec<Key>, TierId),
    LoadMany(Vec<Key>, Option<TierId>),
    MoveMany(Vec<Key>, TierId, TierId, Source),
    DemoteMany(Vec<Key>, TierId, Source),
    PromoteMany(Vec<Key>, TierId),
    End {
        at: usize,
        is_complete: bool,
    },
    EndMany {
        first: usize,
        count: usize,
        is_complete: bool,
    },
    Touch(Vec<Key>),
    Pin(Key, TierId),
    Unpin(Key, TierId),
    PinMany(Vec<Key>, TierId),
    UnpinMany(Vec<Key>, TierId),
    Remove(Key),
    RemoveFrom(Key, TierId),
    Lose(Key, TierId),
    LoseTier(TierId),
    RestoreTier(TierId),
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as Op;
    let key = || prop::sample::select(&KEYS[..]);
    let keys = || prop::collection::vec(key(), 0..5);
    let tier = || (0..3_u8).prop_map(TierId);
    let source = || prop_oneof![Just(Source::Keep), Just(Source::Drop)];
    let from = || prop::option::of(tier());
    prop_oneof![
        6 => (key(), tier()).prop_map(|(key, tier)| Op::Insert(key, tier)),
        6 => (key(), tier()).prop_map(|(key, tier)| Op::Store(key, tier)),
        5 => (key(), from()).prop_map(|(key, from)| Op::Load(key, from)),
        5 => (key(), tier(), tier(), source()).prop_map(|(key, from, to, source)| Op::Move(key, from, to, source)),
        4 => (key(), tier(), source()).prop_map(|(key, to, source)| Op::Demote(key, to, source)),
        4 => (key(), tier()).prop_map(|(key, to)| Op::Promote(key, to)),
        2 => (keys(), tier()).prop_map(|(keys, tier)| Op::StoreMany(keys, tier)),
        2 => (keys(), from()).prop_map(|(keys, from)| Op::LoadMany(keys, from)),
        2 => (keys(), tier(), tier(), source())
            .prop_map(|(keys, from, to, source)| Op::MoveMany(keys, from, to, source)),
        2 => (keys(), tier(), source()).prop_map(|(keys, to, source)| Op::DemoteMany(keys, to, source)),
        2 => (keys(), tier()).prop_map(|(keys, to)| Op::PromoteMany(keys, to)),
        9 => (0..6_usize, prop::bool::weighted(0.7)).prop_map(|(at, is_complete)| Op::End { at, is_complete }),
        2 => (0..4_usize, 0..4_usize, any::<bool>())
            .prop_map(|(first, count, is_complete)| Op::EndMany { first, count, is_complete }),
        3 => keys().prop_map(Op::Touch),
        3 => (key(), tier()).prop_map(|(key, tier)| Op::Pin(key, tier)),
        3 => (key(), tier()).prop_map(|(key, tier)| Op::Unpin(key, tier)),
        1 => (keys(), tier()).prop_map(|(keys, tier)| Op::PinMany(keys, tier)),
        1 => (keys(), tier()).prop_map(|(keys, tier)| Op::UnpinMany(keys, tier)),
        2 => key().prop_map(Op::Remove),
        2 => (key(), tier()).prop_map(|(key, tier)| Op::RemoveFrom(key, tier)),
        2 => (key(), tier()).prop_map(|(key, tier)| Op::Lose(key, tier)),
        1 => tier().prop_map(Op::LoseTier),
        2 => tier().prop_map(Op::RestoreTier),
        1 => Just(Op::Clear),
    ]
}

fn index() -> TierIndex {
    let names = ["device", "host", "remote"].iter().zip(CAPACITIES);
    let tiers = names.map(|(name, capacity)| TierConfig {
        name: (*name).into(),
        capacity,
    });
    TierIndex::new(tiers).expect("three good tiers")
}

/// Ids of transfers in flight, or one that is unknown.
fn flight(model: &Model, at: usize) -> u64 {
    model.flights.keys().nth(at).copied().unwrap_or(u64::MAX)
}

fn apply(index: &mut TierIndex, model: &mut Model, operation: Operation) {
    use Operation as Op;
    match operation {
        Op::Insert(key, tier) => model.insert(key, tier, &index.insert(key, tier)),
        Op::Store(key, to) => model.store(key, to, &index.begin_store(key, to)),
        Op::Load(key, from) => model.load(key, from, &index.begin_load(key, from)),
        Op::Move(key, from, to, source) => {
            model.shift(key, from, to, source, &index.begin_move(key, from, to, source));
        }
        Op::Demote(key, to, source) => {
            model.step(key, to, source, true, &index.demote(key, to, source));
        }
        Op::Promote(key, to) => model.step(key, to, Source::Keep, false, &index.promote(key, to)),
        Op::LoadMany(keys, from) => model.load_batch(&keys, from, &index.begin_load_many(&keys, from)),
        Op::Touch(keys) => {
            model.touch(&keys);
            index.touch(&keys);
        }
        Op::Pin(key, tier) => model.pin(key, tier, &index.pin(key, tier)),
        Op::Unpin(key, tier) => model.unpin(key, tier, &index.unpin(key, tier)),
        Op::PinMany(keys, tier) => model.pin_batch(&keys, tier, &index.pin_many(&keys, tier)),
        Op::UnpinMany(keys, tier) => model.unpin_batch(&keys, tier, &index.unpin_many(&keys, tier)),
        Op::Remove(key) => {
            let dropped = (0..3).filter(|tier| model.drop_key(key, TierId(*tier))).count();
            assert_eq!(index.remove(key), dropped);
        }
        Op::RemoveFrom(key, tier) => {
            assert_eq!(index.remove_from(key, tier), Ok(model.drop_key(key, tier)));
        }
        Op::Lose(key, tier) => model.lose(key, tier, &index.lose(key, tier)),
        Op::LoseTier(tier) => model.lose_tier(tier, &index.lose_tier(tier)),
        Op::RestoreTier(tier) => assert_eq!(index.restore_tier(tier), Ok(model.restore_tier(tier))),
        Op::Clear => model.clear(&index.clear()),
        Op::End { at, is_complete } => end(index, model, at, is_complete),
        Op::EndMany {
            first,
            count,
            is_complete,
        } => end_many(index, model, first, count, is_complete),
        batch => apply_batch(index, model, batch),
    }
}

fn apply_batch(index: &mut TierIndex, model: &mut Model, operation: Operation) {
    use Operation as Op;
    match operation {
        Op::StoreMany(keys, to) => {
            let got = index.begin_store_many(&keys, to);
            model.batch(&keys, |_, _| None, to, Source::Keep, false, &got);
        }
        Op::MoveMany(keys, from, to, source) => {
            let got = index.begin_move_many(&keys, from, to, source);
            if from == to {
                assert_eq!(got, Err(TierError::SameTier(to)));
            } else {
                model.batch(&keys, |_, _| Some(from), to, source, true, &got);
            }
        }
        Op::DemoteMany(keys, to, source) => {
            let got = index.demote_many(&keys, to, source);
            model.batch(
                &keys,
                |model, key| model.nearest(key, to, true),
                to,
                source,
                true,
                &got,
            );
        }
        Op::PromoteMany(keys, to) => {
            let got = index.promote_many(&keys, to);
            let below = |model: &Model, key| model.nearest(key, to, false);
            model.batch(&keys, below, to, Source::Keep, true, &got);
        }
        single => unreachable!("{single:?} is no batch"),
    }
}

fn end(index: &mut TierIndex, model: &mut Model, at: usize, is_complete: bool) {
    let id = flight(model, at);
    let got = if is_complete {
        index.complete(id)
    } else {
        index.fail(id)
    };
    model.end(id, is_complete, &got);
}

fn end_many(index: &mut TierIndex, model: &mut Model, first: usize, count: usize, is_complete: bool) {
    let ids = (first..first + count)
        .map(|at| flight(model, at))
        .collect::<Vec<_>>();
    let got = if is_complete {
        index.complete_many(&ids)
    } else {
        index.fail_many(&ids)
    };
    if ids.contains(&u64::MAX) {
        assert_eq!(got, Err(TierError::UnknownTransfer(u64::MAX)));
        return;
    }
    let ended = got.expect("all are in flight");
    for (id, ended) in ids.iter().zip(ended).rev() {
        model.end(*id, is_complete, &Ok(ended));
    }
}

/// `cargo test --release` runs more; the index is then ten times as fast.
const CASES: u32 = if cfg!(debug_assertions) { 4_000 } else { 50_000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]
    #[test]
    fn any_operations_agree_with_the_model(operations in prop::collection::vec(operation(), 1..40)) {
        let (mut index, mut model) = (index(), Model::new(&CAPACITIES));
        for operation in operations {
            apply(&mut index, &mut model, operation);
            model.compare(&index, &KEYS);
        }
        // Whatever happened, ending all transfers leaves nothing held.
        let ids = model.flights.keys().copied().collect::<Vec<_>>();
        index.fail_many(&ids).expect("all are in flight");
        index.check().expect("every invariant holds");
        prop_assert!(index.stats().iter().all(|tier| tier.arriving + tier.leaving == 0));
    }
}

const DEVICE: TierId = TierId(0);
const HOST: TierId = TierId(1);
const REMOTE: TierId = TierId(2);

#[test]
fn a_block_comes_from_outside_and_goes_outside() {
    let mut index = index();
    let stored = index.begin_store(7, HOST).expect("there is room").transfer;
    assert_eq!(stored.source, None);
    assert_eq!(index.lookup(7), None, "arriving contents are not there");
    let entry = index.entry(7, HOST).expect("a tier").expect("it is arriving");
    assert_eq!(entry.phase, Phase::Arriving);
    assert_eq!(
        index.complete(stored.id).map(|ended| ended.outcome),
        Ok(Outcome::Stored)
    );
    assert_eq!(index.lookup(7), stored.destination);

    let loaded = index.begin_load(7, None).expect("it is resident");
    assert_eq!((loaded.source, loaded.destination), (stored.destination, None));
    assert_eq!(
        index.complete(loaded.id).map(|ended| ended.outcome),
        Ok(Outcome::Loaded)
    );
    assert_eq!(
        index.complete(loaded.id),
        Err(TierError::UnknownTransfer(loaded.id))
    );
}

#[test]
fn a_slot_that_is_read_is_not_used_again() {
    let mut index = index();
    let (first, _) = (index.insert(1, DEVICE), index.insert(2, DEVICE));
    let slot = first.expect("there is room").slot;
    let load = index.begin_load(1, None).expect("it is resident");
    let inserted = index.insert(3, DEVICE).expect("block 2 can go");
    assert_eq!(inserted.evicted, Some(2), "block 1 is older, but is read");
    // Even removed, block 1 keeps its slot until it was read.
    assert_eq!(index.remove(1), 1);
    assert_eq!(
        index.insert(4, DEVICE).map(|inserted| inserted.evicted),
        Ok(Some(3))
    );
    assert_eq!(
        index.complete(load.id).map(|ended| ended.outcome),
        Ok(Outcome::Loaded)
    );
    assert_eq!(index.insert(5, DEVICE).map(|inserted| inserted.slot), Ok(slot));
}

#[test]
fn a_tier_that_goes_away_fails_its_transfers_but_frees_no_slot_early() {
    let mut index = index();
    index.insert(1, REMOTE).expect("there is room");
    let fetch = index.promote(1, HOST).expect("there is room").transfer;
    assert_eq!(index.lose_tier(REMOTE), Ok(vec![fetch.id]));
    assert_eq!(index.lookup(1), None);
    assert_eq!(index.insert(2, REMOTE), Err(TierError::TierLost(REMOTE)));
    assert_eq!(
        index.stats()[1].leaving,
        1,
        "the connector may still write the slot"
    );
    // The same contents can come from elsewhere meanwhile, to another slot.
    let again = index.begin_store(1, HOST).expect("there is room").transfer;
    assert_ne!(again.destination, fetch.destination);
    assert_eq!(
        index.complete(fetch.id).map(|ended| ended.outcome),
        Ok(Outcome::Failed)
    );
    assert_eq!(index.restore_tier(REMOTE), Ok(true));
    index.insert(2, REMOTE).expect("it is open again");
}

#[test]
fn a_chain_is_evicted_from_its_end() {
    let mut index = index();
    let batch = index.begin_store_many(&[1, 2, 3], HOST).expect("there is room");
    let ids = batch
        .transfers
        .iter()
        .map(|transfer| transfer.id)
        .collect::<Vec<_>>();
    let twice = index.complete_many(&[ids[1], ids[0], ids[1]]);
    assert_eq!(twice, Err(TierError::TwiceTransfer(ids[1])));
    index.complete_many(&ids).expect("all are in flight");
    assert_eq!(index.victims(HOST, 9), Ok(vec![3, 2, 1]));
    index.touch(&[2, 3]);
    assert_eq!(index.victims(HOST, 2), Ok(vec![1, 3]));
    // What the batch needs is not evicted for the rest of it.
    assert_eq!(index.complete_many(&ids), Err(TierError::UnknownTransfer(ids[0])));
    let batch = index.begin_store_many(&[9, 1], HOST).expect("there is room");
    assert_eq!(batch.evicted, [3]);
    assert_eq!(index.victims(HOST, 9), Ok(vec![2, 1]));
}

#[test]
fn a_pin_set_while_a_move_is_in_flight_keeps_the_source() {
    let mut index = index();
    index.insert(1, DEVICE).expect("there is room");
    let demotion = index
        .demote(1, HOST, Source::Drop)
        .expect("there is room")
        .transfer;
    index.pin(1, DEVICE).expect("it is resident");
    assert_eq!(
        index.complete(demotion.id).map(|ended| ended.outcome),
        Ok(Outcome::Copied)
    );
    assert_eq!(index.lookup(1).map(|place| place.tier), Some(DEVICE));
    let refused = index.begin_move(1, DEVICE, REMOTE, Source::Drop);
    assert_eq!(refused, Err(TierError::Pinned { key: 1, tier: DEVICE }));
}

#[test]
fn pins_are_counted_up_to_their_limit() {
    let mut index = index();
    index.insert(1, DEVICE).expect("there is room");
    for _ in 0..u16::MAX {
        index.pin(1, DEVICE).expect("not yet too many");
    }
    assert_eq!(
        index.pin(1, DEVICE),
        Err(TierError::TooMany { key: 1, tier: DEVICE })
    );
    index.check().expect("every invariant holds");
}

#[test]
fn tiers_are_checked() {
    let config = |name: &str, capacity| TierConfig {
        name: name.into(),
        capacity,
    };
    let bad = [
        vec![],
        vec![config("host", Some(0))],
        vec![config("", Some(1))],
        vec![config("host", Some(1)), config("host", None)],
        vec![config("host", Some(u32::MAX as usize))],
        (0..17).map(|i| config(&i.to_string(), None)).collect(),
    ];
    for tiers in bad {
        assert!(
            matches!(TierIndex::new(tiers.clone()), Err(TierError::BadTiers(_))),
            "{tiers:?}"
        );
    }
    let mut index = index();
    assert_eq!(index.tier("host"), Ok(HOST));
    assert_eq!(index.name(REMOTE), Ok("remote"));
    assert_eq!(
        index.tier("disk").map_err(|error| error.to_string()),
        Err("there is no tier \"disk\"".into())
    );
    assert!(matches!(
        index.insert(1, TierId(3)),
        Err(TierError::UnknownTier(_))
    ));
    assert!(matches!(
        index.demote(1, TierId(3), Source::Keep),
        Err(TierError::UnknownTier(_))
    ));
}
