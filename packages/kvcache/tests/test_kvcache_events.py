"""The event log, the wire format and the follower: vectors, round trips, gaps, a bad network."""

import contextlib
import json
import random
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvcache_wire_reference import read_batch
from llm_kvcache import errors
from llm_kvcache.events import (
    WIRE_VERSION,
    Cleared,
    EventBatch,
    EventLog,
    Follower,
    Moved,
    Removed,
    Stored,
    decode,
    encode,
)

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "rust/crates/kvcache-events/tests/vectors.json").read_text())
KINDS = {"stored": Stored, "removed": Removed, "moved": Moved, "cleared": Cleared}


def key(n):
    return n.to_bytes(16, "little")


def stored(*numbers, tier="device", group=0):
    return Stored(keys=tuple(map(key, numbers)), block_size=16, tier=tier, group=group)


def removed(*numbers, tier="device", group=0):
    return Removed(keys=tuple(map(key, numbers)), tier=tier, group=group)


def as_event(fields):
    fields = dict(fields)
    kind = KINDS[fields.pop("kind")]
    for name in ("keys", "token_ids"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if "keys" in fields:
        fields["keys"] = tuple(map(bytes.fromhex, fields["keys"]))
    if fields.get("parent"):
        fields["parent"] = bytes.fromhex(fields["parent"])
    if "from" in fields:
        fields["source"] = fields.pop("from")
    return kind(**fields)


def as_batch(vector):
    return EventBatch(
        epoch=vector["epoch"],
        seq=vector["seq"],
        is_snapshot=vector["is_snapshot"],
        events=tuple(map(as_event, vector["events"])),
    )


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vectors(vector):
    data = bytes.fromhex(vector["bytes"])
    assert encode(as_batch(vector)) == data
    assert decode(data) == as_batch(vector)
    # Another implementation reads the same from the bytes.
    plain = {name: value for name, value in vector.items() if name not in ("name", "bytes")}
    assert read_batch(data) == plain


def test_the_documentation_prints_the_vectors():
    printed = re.findall(r"`([0-9a-f]{12,})`", (ROOT / "packages/kvcache/EVENTS.md").read_text())
    assert WIRE_VERSION == 1
    assert [vector["bytes"] for vector in VECTORS] == printed


keys_st = st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20).map(tuple)
uint32_st = st.integers(0, 2**32 - 1)
name_st = st.text(min_size=1, max_size=40)


@st.composite
def stored_st(draw):
    keys, block_size = draw(keys_st), draw(st.integers(1, 4))
    count = len(keys) * block_size
    return Stored(
        keys=keys,
        block_size=block_size,
        token_ids=tuple(draw(st.one_of(st.just([]), st.lists(uint32_st, min_size=count, max_size=count)))),
        parent=draw(st.none() | st.binary(min_size=16, max_size=16)),
        group=draw(uint32_st),
        tier=draw(name_st),
        lora=draw(st.none() | st.text(max_size=40)),
        has_extra_keys=draw(st.booleans()),
    )


moved_st = st.builds(
    Moved, keys=keys_st, source=name_st, to=name_st, group=uint32_st, is_copy=st.booleans()
).filter(lambda moved: moved.source != moved.to)
removed_st = st.builds(Removed, keys=keys_st, tier=name_st, group=uint32_st)
cleared_st = st.builds(Cleared, tier=st.none() | name_st)
batch_st = st.builds(
    EventBatch,
    epoch=st.integers(0, 2**64 - 1),
    seq=st.integers(0, 2**64 - 1),
    is_snapshot=st.booleans(),
    events=st.lists(st.one_of(stored_st(), removed_st, moved_st, cleared_st), max_size=20).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(batch_st)
def test_batches_survive_the_wire(batch):
    data = encode(batch)
    assert decode(data) == batch
    assert [as_event(event) for event in read_batch(data)["events"]] == list(batch.events)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"\x95\x01\x00\x00\xc2\x99" + data))
def test_any_bytes_are_read_or_refused(data):
    try:
        batch = decode(data)
    except (errors.WireError, errors.InvalidArgument):
        return
    assert decode(encode(batch)) == batch


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (Removed(keys=(), tier="device"), "keys"),
        (Removed(keys=(b"short",), tier="device"), "keys"),
        (Removed(keys=(key(1),), tier=""), "tier"),
        (Removed(keys=(key(1),), tier=3), "tier"),
        (Removed(keys=(key(1),), tier="device", group=-1), "group"),
        (Moved(keys=(key(1),), source="host", to="host"), "to"),
        (replace(stored(1), token_ids=(1, 2)), "token_ids"),
        (replace(stored(1), token_ids=(-1,) * 16), "token_ids"),
        (replace(stored(1), block_size=0), "block_size"),
        (replace(stored(1), parent=b""), "parent"),
        (replace(stored(1), lora=7), "lora"),
        (Cleared(tier=""), "tier"),
        ("no event", "event"),
    ],
)
def test_bad_events_are_refused(event, field):
    log = EventLog(10, epoch=0)
    with pytest.raises(errors.InvalidArgument) as caught:
        log.push(event)
    assert caught.value.field == field
    with pytest.raises(errors.InvalidArgument):
        encode(EventBatch(epoch=0, seq=0, events=(event,)))
    assert (log.next_seq, len(log)) == (0, 0)


def test_other_versions_are_refused():
    with pytest.raises(errors.WireError, match="version 2"):
        decode(b"\x95\x02\x00\x00\xc2\x90")
    with pytest.raises(errors.WireError, match="byte 6"):
        decode(b"\x95\x01\x00\x00\xc2\x90\x00")
    with pytest.raises(errors.InvalidArgument):
        decode("text")


def test_a_log_keeps_the_latest_and_tells_of_gaps():
    log = EventLog(3, epoch=9)
    for n in range(5):
        log.push(removed(n))
    assert (log.oldest_seq, log.next_seq, len(log), log.capacity, log.epoch) == (2, 5, 3, 3, 9)
    batch = log.since(3)
    assert batch == EventBatch(epoch=9, seq=3, events=(removed(3), removed(4)))
    assert log.since(2, limit=1).events == (removed(2),)
    assert log.since(5).events == ()
    for wanted in (1, 6):
        with pytest.raises(errors.EventGap) as caught:
            log.since(wanted)
        assert (caught.value.wanted, caught.value.oldest, caught.value.next) == (wanted, 2, 5)
    assert log.drain().next_seq == 5
    assert len(log) == 0
    # An event that names more blocks than the capacity is kept alone.
    log.push(removed(1))
    log.push(removed(*range(9)))
    assert (log.oldest_seq, len(log)) == (6, 1)


def test_a_disabled_log_says_so():
    log = EventLog(0)
    log.push(removed(1))
    assert len(log) == 0
    for call in (lambda: log.since(0), log.drain, lambda: log.snapshot([])):
        with pytest.raises(errors.EventsDisabled):
            call()


def test_a_follower_that_is_behind_goes_on_from_a_snapshot():
    log, follower = EventLog(2, epoch=1), Follower()
    for n in range(5):
        log.push(stored(n))
    with pytest.raises(errors.EventGap):
        follower.apply(log.since(log.oldest_seq))
    assert (follower.epoch, follower.next_seq) == (None, 0)
    follower.apply(log.snapshot([stored(*range(5))]))
    log.push(removed(0))
    assert follower.apply(log.since(follower.next_seq)) == 1
    assert follower.keys("device") == {key(n) for n in range(1, 5)}
    # An older snapshot, or a batch seen before, changes nothing.
    assert follower.apply(EventBatch(epoch=1, seq=5, events=(), is_snapshot=True)) == 0
    assert follower.apply(log.since(log.oldest_seq)) == 0
    assert len(follower.keys("device")) == 4


def test_a_cache_that_starts_anew_is_followed_from_its_first_event():
    follower = Follower()
    follower.apply(EventBatch(epoch=1, seq=0, events=(stored(1), stored(2, tier="host"))))
    assert follower.tiers_of(key(2)) == {"host"}
    with pytest.raises(errors.EventGap):
        follower.apply(EventBatch(epoch=2, seq=2, events=(stored(3),)))
    assert follower.keys("device") == {key(1)}
    assert follower.apply(EventBatch(epoch=2, seq=0, events=(stored(3),))) == 1
    assert (follower.keys("device"), follower.keys("host")) == ({key(3)}, frozenset())
    # A batch of the earlier life that comes late is no restart.
    assert follower.apply(EventBatch(epoch=1, seq=0, events=(stored(1),))) == 0
    assert follower.keys("device") == {key(3)}


def test_a_follower_ranks_by_prefix_over_tiers_and_groups():
    follower = Follower()
    events = (stored(1, 2), stored(3, tier="host"), stored(9, group=1), stored(5))
    follower.apply(EventBatch(epoch=0, seq=0, events=events))
    chain = [key(n) for n in (1, 2, 3, 4, 5)]
    assert (follower.prefix(chain), follower.prefix(chain, group=1)) == (3, 0)
    moved = Moved(keys=(key(1),), source="device", to="host")
    follower.apply(EventBatch(epoch=0, seq=4, events=(moved, replace(moved, keys=(key(2),), is_copy=True))))
    assert (follower.tiers_of(key(1)), follower.tiers_of(key(2))) == ({"host"}, {"device", "host"})
    follower.apply(EventBatch(epoch=0, seq=6, events=(Cleared(tier="device"),)))
    assert follower.keys("device") == frozenset()
    assert follower.keys("host") == {key(1), key(2), key(3)}
    follower.apply(EventBatch(epoch=0, seq=7, events=(Cleared(),)))
    assert follower.prefix(chain) == 0


def random_event(rng, held):
    tiers = ["device", "host"]
    tier, other = rng.sample(tiers, 2)
    numbers = rng.sample(range(12), rng.randint(1, 4))
    match rng.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            held[tier].update(numbers)
            return stored(*numbers, tier=tier)
        case 5 | 6 | 7:
            held[tier].difference_update(numbers)
            return removed(*numbers, tier=tier)
        case 8:
            is_copy = rng.random() < 0.5
            held[other].update(numbers)
            if not is_copy:
                held[tier].difference_update(numbers)
            return Moved(keys=tuple(map(key, numbers)), source=tier, to=other, is_copy=is_copy)
        case _:
            chosen = rng.choice([None, "device", "host"])
            for name in tiers:
                if chosen in (None, name):
                    held[name].clear()
            return Cleared(tier=chosen)


def test_followers_over_a_bad_network_end_up_with_what_the_cache_holds():
    for seed in range(500):
        rng = random.Random(seed)
        log, follower = EventLog(rng.randint(5, 40), epoch=seed), Follower()
        held = {"device": set(), "host": set()}
        sent = []
        for _ in range(rng.randint(1, 120)):
            log.push(random_event(rng, held))
            if rng.random() < 0.3:
                sent.append(
                    encode(log.since(rng.randint(log.oldest_seq, log.next_seq), limit=rng.randint(0, 9)))
                )
            if sent and rng.random() < 0.3:
                # Late, twice, in any order, or never.
                with contextlib.suppress(errors.EventGap):
                    follower.apply(decode(rng.choice(sent)))
        try:
            follower.apply(decode(encode(log.since(follower.next_seq))))
        except errors.EventGap:
            events = [stored(*held[tier], tier=tier) for tier in held if held[tier]]
            follower.apply(decode(encode(log.snapshot(events))))
        for tier, numbers in held.items():
            assert follower.keys(tier) == set(map(key, numbers)), seed
        assert follower.next_seq == log.next_seq


def test_threads_share_a_log():
    log = EventLog(10_000, epoch=0)

    def work(n):
        for _ in range(500):
            log.push(removed(n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = log.drain().events
    assert sorted(event.keys[0] for event in events) == sorted(key(n) for n in range(4) for _ in range(500))
