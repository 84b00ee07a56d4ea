"""The tier index as a connector uses it: contents that are copied, events that are followed, refusals."""

import random

import pytest
from llm_kvcache import errors
from llm_kvcache.events import Cleared, EventBatch, Follower, Moved, Removed, Stored
from llm_kvcache.tiers import Begun, Entry, Inserted, Place, Tier, TierIndex

TIERS = [Tier("device", 2), Tier("host", 4), Tier("remote")]
VOID = "void"


def key(n):
    return n.to_bytes(16, "little")


def keys(*numbers):
    return [key(n) for n in numbers]


class World:
    """Slots with contents, and a connector that copies them late; emits events for a follower."""

    def __init__(self, rng):
        self.rng = rng
        self.index = TierIndex(TIERS)
        self.slots = {}
        self.in_flight = {}
        self.follower = Follower()
        self.seq = 0

    def emit(self, *events):
        self.follower.apply(EventBatch(epoch=0, seq=self.seq, events=events))
        self.seq += len(events)

    def evicted(self, tier, gone):
        if gone:
            self.emit(Removed(keys=tuple(gone), tier=tier))

    def begin(self, begun, to):
        self.evicted(to, begun.evicted)
        for transfer in begun.transfers:
            assert transfer.destination.tier == to
            self.slots[transfer.destination] = VOID  # half written from now on
            self.in_flight[transfer.id] = transfer

    def insert(self):
        n, tier = self.rng.randrange(8), self.tier()
        inserted = self.index.insert(key(n), tier)
        self.slots[inserted.place] = key(n)
        self.evicted(tier, [inserted.evicted] if inserted.evicted else [])
        self.emit(Stored(keys=(key(n),), block_size=16, tier=tier))

    def tier(self):
        return self.rng.choice(TIERS).name

    def some(self):
        return keys(*self.rng.sample(range(8), self.rng.randint(1, 3)))

    def store(self):
        to = self.tier()
        self.begin(self.index.begin_store(self.some(), to), to)

    def load(self):
        source = self.rng.choice([None, self.tier()])
        for transfer in self.index.begin_load(self.some(), source=source):
            self.in_flight[transfer.id] = transfer

    def demote(self):
        to = self.tier()
        self.begin(self.index.demote(self.some(), to, keep_source=self.rng.random() < 0.5), to)

    def promote(self):
        to = self.tier()
        self.begin(self.index.promote(self.some(), to), to)

    def move(self):
        source, to = self.tier(), self.tier()
        self.begin(self.index.begin_move(self.some(), source, to, keep_source=self.rng.random() < 0.5), to)

    def end(self):
        if not self.in_flight:
            return
        some = self.rng.sample(sorted(self.in_flight), self.rng.randint(1, min(3, len(self.in_flight))))
        if self.rng.random() < 0.2:
            for ended in self.index.fail(some):
                assert ended.outcome == "failed"
                del self.in_flight[ended.transfer.id]
            return
        read = {}
        for transfer in map(self.in_flight.get, some):
            read[transfer.id] = self.slots[transfer.source] if transfer.source else transfer.key
            if transfer.destination:
                self.slots[transfer.destination] = read[transfer.id]
        for ended in self.index.complete(some):
            transfer = self.in_flight.pop(ended.transfer.id)
            assert transfer == ended.transfer
            if ended.outcome == "failed":
                continue
            assert read[transfer.id] == transfer.key, "a slot was used again while it was read"
            self.arrived(transfer, ended.outcome)

    def arrived(self, transfer, outcome):
        block = (transfer.key,)
        if outcome == "stored":
            self.emit(Stored(keys=block, block_size=16, tier=transfer.destination.tier))
        elif outcome != "loaded":
            source, to = transfer.source.tier, transfer.destination.tier
            # Not the outcome: the source may have been removed meanwhile, or have come anew.
            entry = self.index.entry(transfer.key, source)
            is_copy = entry is not None and entry.is_resident
            self.emit(Moved(keys=block, source=source, to=to, is_copy=is_copy))

    def remove(self):
        tier = self.rng.choice([None, self.tier()])
        some = self.some()
        self.index.remove(some, tier=tier)
        for name in [tier] if tier else [tier.name for tier in TIERS]:
            self.emit(Removed(keys=tuple(some), tier=name))

    def lose(self):
        n, tier = self.rng.randrange(8), self.tier()
        entry = self.index.entry(key(n), tier)
        self.index.lose(key(n), tier)
        self.slots[entry.place] = VOID
        self.emit(Removed(keys=(key(n),), tier=tier))

    def lose_tier(self):
        tier = self.tier()
        doomed = self.index.lose_tier(tier)
        assert set(doomed) <= set(self.in_flight)
        self.slots = {place: VOID if place.tier == tier else held for place, held in self.slots.items()}
        self.emit(Cleared(tier=tier))

    def restore_tier(self):
        self.index.restore_tier(self.tier())

    def clear(self):
        assert self.index.clear() == sorted(self.in_flight)
        self.slots = dict.fromkeys(self.slots, VOID)
        self.emit(Cleared())

    def pin(self):
        self.index.pin(self.some(), self.tier())

    def unpin(self):
        self.index.unpin(self.some(), self.tier())

    def touch(self):
        self.index.touch(self.some())

    def check(self):
        self.index.check()
        assert self.index.num_in_flight == len(self.in_flight)
        for tier, stats in zip(TIERS, self.index.stats(), strict=True):
            contents = self.index.contents(tier.name)
            assert self.follower.keys(tier.name) == {held for held, _ in contents}
            assert stats.resident == len(contents)
            for held, slot in contents:
                assert self.slots[Place(tier.name, slot)] == held


ACTIONS = [
    *["insert", "store", "load", "demote", "promote", "move"] * 3,
    *["end"] * 8,
    *["remove", "lose", "pin", "unpin", "unpin", "touch", "restore_tier"],
]


REFUSALS = (errors.NotResident, errors.NoRoom, errors.TierLost, errors.InvalidArgument)


def test_contents_survive_a_connector_that_copies_late():
    for seed in range(1000):
        world = World(random.Random(seed))
        for _ in range(40):
            rare = world.rng.random()
            action = "clear" if rare < 0.01 else "lose_tier" if rare < 0.03 else world.rng.choice(ACTIONS)
            before = (world.index.stats(), world.index.num_in_flight)
            is_refused = False
            try:
                getattr(world, action)()
            except REFUSALS:
                is_refused = True
            assert not is_refused or before == (world.index.stats(), world.index.num_in_flight), seed
            world.check()


def test_a_walk_through_the_tiers():
    index = TierIndex(TIERS)
    assert index.tiers == tuple(TIERS)
    begun = index.begin_store(keys(1, 2, 3), "host")
    assert [transfer.key for transfer in begun.transfers] == keys(1, 2, 3)
    assert all(transfer.source is None for transfer in begun.transfers)
    first = begun.transfers[0]
    assert index.transfer(first.id) == first
    assert index.locate(keys(1, 2, 3)) == []
    assert index.entry(key(1), "host") == Entry(first.destination, is_resident=False, readers=0, pins=0)
    ended = index.complete([transfer.id for transfer in begun.transfers])
    assert [(end.transfer.key, end.outcome) for end in ended] == [(key(n), "stored") for n in (1, 2, 3)]
    assert index.transfer(first.id) is None
    assert [place.tier for place in index.locate(keys(1, 2, 9, 3))] == ["host", "host"]
    assert index.victims("host", 2) == keys(3, 2)

    promoted = index.promote(keys(1), "device").transfers[0]
    assert (promoted.source, promoted.destination.tier) == (first.destination, "device")
    assert index.entry(key(1), "host").readers == 1
    assert index.complete([promoted.id])[0].outcome == "copied"
    assert index.lookup(key(1)) == promoted.destination
    demoted = index.demote(keys(1), "remote").transfers[0]
    assert demoted.source == promoted.destination
    assert index.complete([demoted.id])[0].outcome == "moved"
    assert index.lookup(key(1)).tier == "host"
    assert index.begin_store(keys(1, 2), "host") == Begun((), ())
    assert index.available("host") == 4
    assert index.insert(key(7), "device") == Inserted(Place("device", 0), None)


def test_a_full_tier_evicts_or_refuses():
    index = TierIndex([Tier("host", 2)])
    index.insert(key(1), "host")
    index.insert(key(2), "host")
    index.pin(keys(1), "host")
    begun = index.begin_store(keys(3), "host")
    assert begun.evicted == (key(2),)
    with pytest.raises(errors.NoRoom) as caught:
        index.begin_store(keys(4), "host")
    assert (caught.value.tier, caught.value.needed, caught.value.available) == ("host", 1, 0)
    index.fail([begun.transfers[0].id])
    index.unpin(keys(1), "host")
    stats = index.stats()[0]
    assert (stats.name, stats.resident, stats.free, stats.idle, stats.evictions) == ("host", 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda index: index.insert(key(1), "host"), errors.InvalidArgument),
        (lambda index: index.insert(b"short", "host"), errors.InvalidArgument),
        (lambda index: index.insert(key(2), "tape"), errors.InvalidArgument),
        (lambda index: index.insert(key(2), 1), errors.InvalidArgument),
        (lambda index: index.begin_store(key(2), "host"), errors.InvalidArgument),
        (lambda index: index.begin_store(keys(2, 2), "host"), errors.InvalidArgument),
        (lambda index: index.begin_store(keys(2), "remote"), errors.TierLost),
        (lambda index: index.begin_store(keys(2, 3, 4, 5), "host"), errors.NoRoom),
        (lambda index: index.begin_load(keys(1, 2)), errors.NotResident),
        (lambda index: index.begin_load(keys(1), source="device"), errors.NotResident),
        (lambda index: index.begin_move(keys(1), "host", "host"), errors.InvalidArgument),
        (
            lambda index: index.begin_move(keys(1), "host", "device", keep_source=False),
            errors.InvalidArgument,
        ),
        (lambda index: index.demote(keys(1), "host"), None),
        (lambda index: index.demote(keys(2), "host"), errors.NotResident),
        (lambda index: index.promote(keys(2), "device"), errors.NotResident),
        (lambda index: index.complete([99]), errors.UnknownTransfer),
        (lambda index: index.complete([-1]), errors.InvalidArgument),
        (lambda index: index.fail([0, 99]), errors.UnknownTransfer),
        (lambda index: index.fail([0, 0]), errors.InvalidArgument),
        (lambda index: index.lose(key(2), "host"), errors.NotResident),
        (lambda index: index.pin(keys(1, 2), "host"), errors.NotResident),
        (lambda index: index.pin(keys(1, 1), "host"), errors.InvalidArgument),
        (lambda index: index.unpin(keys(5), "host"), errors.InvalidArgument),
        (lambda index: index.victims("host", -1), errors.InvalidArgument),
    ],
)
def test_refused_calls_change_nothing(call, error):
    index = TierIndex(TIERS)
    index.insert(key(1), "host")
    index.pin(keys(1), "host")
    index.insert(key(5), "host")
    index.begin_store(keys(6), "host")
    index.lose_tier("remote")
    before = (index.stats(), index.num_in_flight, index.contents("host"), index.victims("host", 9))
    if error is None:  # the tier has it already, so there is nothing to do
        assert call(index) == Begun((), ())
    else:
        with pytest.raises(error):
            call(index)
    assert before == (index.stats(), index.num_in_flight, index.contents("host"), index.victims("host", 9))
    index.check()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TierIndex([]),
        lambda: TierIndex([Tier("host"), Tier("host")]),
        lambda: TierIndex([Tier(str(n)) for n in range(17)]),
        lambda: TierIndex(["host"]),
        lambda: Tier(""),
        lambda: Tier("host", 0),
        lambda: Tier("host", 2**32 - 1),
        lambda: Tier("host", 1.5),
    ],
)
def test_bad_tiers_are_refused(make):
    with pytest.raises(errors.InvalidArgument):
        make()
