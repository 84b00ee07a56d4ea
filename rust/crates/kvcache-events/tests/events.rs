//! The log against a model that forgets nothing, the wire format by round trips and by damaged bytes.

use kvcache_events::{Batch, Event, EventError, EventLog, Key, Name, Stored, decode, encode};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        Just("device".into()),
        Just("host".into()),
        "[a-zé]{1,40}".prop_map(Name::from),
    ]
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    prop::collection::vec(any::<Key>(), 1..20)
}

fn stored() -> impl Strategy<Value = Event> {
    let head = (
        keys(),
        prop::option::of(any::<Key>()),
        1..5_u32,
        any::<bool>(),
        any::<u32>(),
    );
    let tail = (any::<u32>(), name(), prop::option::of(name()), any::<bool>());
    (head, tail).prop_map(
        |((keys, parent, block_size, is_told, token), (group, tier, lora, has_extra_keys))| {
            let count = if is_told {
                keys.len() as u32 * block_size
            } else {
                0
            };
            Event::Stored(Stored {
                keys,
                parent,
                token_ids: (0..count).map(|i| token.wrapping_add(i)).collect(),
                block_size,
                group,
                tier,
                lora,
                has_extra_keys,
            })
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        stored(),
        (keys(), any::<u32>(), name()).prop_map(|(keys, group, tier)| Event::Removed { keys, group, tier }),
        (keys(), any::<u32>(), name(), name(), any::<bool>())
            .prop_filter("moves go elsewhere", |(_, _, from, to, _)| from != to)
            .prop_map(|(keys, group, from, to, is_copy)| Event::Moved {
                keys,
                group,
                from,
                to,
                is_copy
            }),
        prop::option::of(name()).prop_map(|tier| Event::Cleared { tier }),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let events = prop::collection::vec(event(), 0..20);
    (any::<u64>(), any::<u64>(), any::<bool>(), events).prop_map(|(epoch, seq, is_snapshot, events)| Batch {
        epoch,
        seq,
        is_snapshot,
        events,
    })
}

fn removed(keys: usize) -> Event {
    Event::Removed {
        keys: vec![[0; 16]; keys],
        group: 0,
        tier: "device".into(),
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Push(Event),
    Since(u64),
    Page(u64, usize),
    Drain,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1..6_usize).prop_map(|keys| Operation::Push(removed(keys))),
        2 => event().prop_map(Operation::Push),
        3 => (0..30_u64).prop_map(Operation::Since),
        1 => (0..30_u64, 0..4_usize).prop_map(|(seq, limit)| Operation::Page(seq, limit)),
        1 => Just(Operation::Drain),
    ]
}

/// Every event ever pushed, and the number of the first that is kept.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
    oldest: usize,
}

impl Model {
    fn push(&mut self, event: Event, capacity: usize) {
        self.events.push(event);
        let weigh = |events: &[Event]| events.iter().map(|event| event.num_keys().max(1)).sum::<usize>();
        while weigh(&self.events[self.oldest..]) > capacity && self.oldest + 1 < self.events.len() {
            self.oldest += 1;
        }
    }

    fn page(&self, seq: u64, limit: usize) -> Result<Vec<Event>, EventError> {
        let kept = self.oldest as u64..=self.events.len() as u64;
        if !kept.contains(&seq) {
            return Err(EventError::Gap {
                wanted: seq,
                oldest: *kept.start(),
                next: *kept.end(),
            });
        }
        let end = self.events.len().min((seq as usize).saturating_add(limit));
        Ok(self.events[seq as usize..end].to_vec())
    }
}

const CASES: u32 = if cfg!(debug_assertions) { 4_000 } else { 50_000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn the_log_agrees_with_a_model_that_forgets_nothing(
        capacity in 1..20_usize,
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let (mut log, mut model) = (EventLog::new(capacity, 5), Model::default());
        for operation in operations {
            match operation {
                Operation::Push(event) => {
                    log.push(event.clone()).expect("a good event");
                    model.push(event, capacity);
                }
                Operation::Since(seq) => {
                    let events = log.since(seq).map(|batch| batch.events);
                    prop_assert_eq!(events, model.page(seq, usize::MAX));
                }
                Operation::Page(seq, limit) => {
                    let events = log.page(seq, limit).map(|batch| batch.events);
                    prop_assert_eq!(events, model.page(seq, limit));
                }
                Operation::Drain => {
                    let batch = log.drain().expect("it is enabled");
                    prop_assert_eq!(batch.seq, model.oldest as u64);
                    prop_assert_eq!(&batch.events[..], &model.events[model.oldest..]);
                    model.oldest = model.events.len();
                }
            }
            prop_assert_eq!(log.oldest_seq(), model.oldest as u64);
            prop_assert_eq!(log.next_seq(), model.events.len() as u64);
            prop_assert_eq!(log.len(), model.events.len() - model.oldest);
        }
    }

    #[test]
    fn batches_survive_the_wire(batch in batch()) {
        let bytes = encode(&batch).expect("a good batch");
        prop_assert_eq!(decode(&bytes), Ok(batch));
    }

    #[test]
    fn damaged_bytes_are_refused_or_are_another_good_batch(
        batch in batch(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = encode(&batch).expect("a good batch");
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(other) = decode(&bytes) {
            let again = encode(&other).expect("what was read can be written");
            prop_assert_eq!(decode(&again), Ok(other));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // The head of a batch, so that the bytes reach the readers of events.
        let mut started = vec![0x95, 1, 0, 0, 0xc2, 0xdc, 0, 9];
        started.extend(&bytes);
        let _ = (decode(&bytes), decode(&started));
    }
}

#[test]
fn every_cut_of_a_batch_is_refused() {
    let events = vec![removed(2), Event::Cleared { tier: None }];
    let bytes = encode(&Batch {
        epoch: 1 << 40,
        seq: 300,
        is_snapshot: false,
        events,
    })
    .expect("a good batch");
    for end in 0..bytes.len() {
        let refused = decode(&bytes[..end]);
        assert!(matches!(refused, Err(EventError::Malformed { .. })), "{end}");
    }
    let mut longer = bytes.clone();
    longer.push(0xc0);
    assert!(matches!(decode(&longer), Err(EventError::Malformed { .. })));
}

#[test]
fn elements_of_later_minor_versions_are_passed_over() {
    // Every kind of msgpack value, nested, appended to the event and to the batch.
    let more: &[u8] = &[
        0xdc, 0, 16, 0xc0, 0x7f, 0xff, 0xcc, 1, 0xcd, 1, 2, 0xd3, 1, 2, 3, 4, 5, 6, 7, 8, 0xca, 1, 2, 3, 4,
        0xcb, 1, 2, 3, 4, 5, 6, 7, 8, 0xa1, b'x', 0xd9, 1, b'x', 0xc4, 2, 1, 2, 0x81, 1, 0x92, 2, 3, 0xd4, 1,
        2, 0xd8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0xc7, 1, 5, 9, 0xdc, 0, 1, 0xde,
        0, 1, 1, 2,
    ];
    let plain: &[u8] = &[0x95, 1, 2, 3, 0xc2, 0x91, 0x92, 3, 0xc0];
    let expected = decode(plain).expect("a good batch");
    let mut longer = vec![0x96, 1, 2, 3, 0xc2, 0x91, 0x93, 3, 0xc0];
    longer.extend(more);
    longer.extend(more);
    assert_eq!(decode(&longer), Ok(expected));
    longer.pop();
    assert!(matches!(decode(&longer), Err(EventError::Malformed { .. })));
}

#[test]
fn wide_forms_are_read_too() {
    let narrow: &[u8] = &[0x95, 1, 2, 3, 0xc2, 0x91, 0x92, 3, 0xa1, b'x'];
    let wide: &[u8] = &[
        0xdd, 0, 0, 0, 5, 0xd0, 1, 0xcf, 0, 0, 0, 0, 0, 0, 0, 2, 0xd2, 0, 0, 0, 3, 0xc2, 0xdc, 0, 1, 0x92,
        0xcd, 0, 3, 0xda, 0, 1, b'x',
    ];
    assert_eq!(decode(wide), decode(narrow));
    assert!(decode(wide).is_ok());
}

#[test]
fn other_versions_kinds_and_values_are_refused() {
    assert_eq!(decode(&[0x95, 2, 0, 0, 0xc2, 0x90]), Err(EventError::Version(2)));
    let malformed: [&[u8]; 10] = [
        &[0x95, 1, 0xd0, 0x80, 0, 0xc2, 0x90], // a negative epoch in 8 bits
        &[0x95, 1, 0, 0xd3, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xc2, 0x90], // a negative number in 64 bits
        &[0x94, 1, 0, 0, 0xc2],                // too short
        &[0x95, 1, 0xff, 0, 0xc2, 0x90],       // a negative epoch
        &[0x95, 1, 0, 0, 0, 0x90],             // no boolean
        &[0x95, 1, 0, 0, 0xc2, 0x91, 0x92, 4, 0xc0], // an unknown kind
        &[0x95, 1, 0, 0, 0xc2, 0x91, 0x93, 1, 0xc4, 0, 0], // a removal too short
        &[0x95, 1, 0, 0, 0xc2, 0x91, 0x94, 1, 0xc4, 1, 9, 0, 0xa0], // a key of one byte
        &[0x95, 1, 0, 0, 0xc2, 0x91, 0x92, 3, 0xa1, 0xff], // no UTF-8
        &[0x95, 1, 0, 0, 0xc2, 0xdd, 255, 255, 255, 255], // 2^32 - 1 events claimed
    ];
    for bytes in malformed {
        let refused = decode(bytes);
        assert!(
            matches!(refused, Err(EventError::Malformed { .. })),
            "{bytes:?}: {refused:?}"
        );
    }
    // No keys.
    let refused = decode(&[0x95, 1, 0, 0, 0xc2, 0x91, 0x94, 1, 0xc4, 0, 0, 0xa1, b'x']);
    assert!(matches!(refused, Err(EventError::Invalid { field: "keys", .. })));
}

#[test]
fn events_are_checked_before_they_get_a_number() {
    let mut log = EventLog::new(10, 0);
    let stored = |tokens: usize, block_size| {
        Event::Stored(Stored {
            keys: vec![[1; 16]; 2],
            parent: None,
            token_ids: vec![0; tokens],
            block_size,
            group: 0,
            tier: "host".into(),
            lora: None,
            has_extra_keys: false,
        })
    };
    let moved = |to: &str| Event::Moved {
        keys: vec![[1; 16]],
        group: 0,
        from: "host".into(),
        to: to.into(),
        is_copy: false,
    };
    let bad = [
        (removed(0), "keys"),
        (stored(7, 4), "token_ids"),
        (stored(0, 0), "block_size"),
        (moved("host"), "to"),
        (moved(""), "to"),
        (
            Event::Cleared {
                tier: Some("".into()),
            },
            "tier",
        ),
    ];
    for (event, field) in bad {
        let refused = log.push(event);
        assert!(matches!(refused, Err(EventError::Invalid { field: named, .. }) if named == field));
    }
    assert_eq!(log.next_seq(), 0);
    log.push(stored(8, 4)).expect("a good event");
}

#[test]
fn a_disabled_log_makes_no_events() {
    let mut log = EventLog::disabled();
    log.push_with(|| unreachable!("it is disabled"))
        .expect("nothing to refuse");
    assert_eq!((log.len(), log.next_seq(), log.is_enabled()), (0, 0, false));
    assert_eq!(log.since(0), Err(EventError::Disabled));
    assert_eq!(log.drain(), Err(EventError::Disabled));
    assert_eq!(log.snapshot(vec![]), Err(EventError::Disabled));
}

#[test]
fn one_event_larger_than_the_log_is_kept_alone() {
    let mut log = EventLog::new(3, 0);
    for keys in [1, 1, 9, 2] {
        log.push(removed(keys)).expect("a good event");
    }
    assert_eq!((log.oldest_seq(), log.len()), (3, 1));
    let batch = log.since(3).expect("it is kept");
    assert_eq!((batch.seq, batch.next_seq()), (3, 4));
    let snapshot = log.snapshot(vec![removed(1)]).expect("it is enabled");
    assert_eq!((snapshot.seq, snapshot.next_seq()), (4, 4));
}
