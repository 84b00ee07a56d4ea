"""Eviction policies: the native ones by example, and those in Python that behave, fail, lie or call back."""

import threading

import pytest
from kvcache_reference_policies import MostRecentFirst
from llm_kvcache import (
    BlockInfo,
    EvictionPolicy,
    FullAttention,
    InvariantError,
    KVCache,
    KVCacheError,
    PolicyError,
)


def make(policy, num_blocks=4, **options):
    return KVCache([FullAttention(2)], num_blocks, policy=policy, **options)


def fill(cache, tokens, **retention):
    """Computes a sequence and closes it; returns the blocks that stay cached, in their order."""
    seq = cache.open(tokens)
    cache.match(seq)
    assert cache.grow(seq, len(tokens) - cache.num_reserved(seq))
    cache.commit(seq, len(tokens))
    cache.set_retention(seq, **retention)
    blocks = cache.block_table(seq).tolist()
    cache.release(seq)
    return blocks


def touch(cache, tokens):
    """A hit on all blocks of these tokens."""
    seq = cache.open([*tokens, 99])
    assert cache.match(seq) == len(tokens)
    cache.release(seq)


def test_lfu_keeps_what_is_used_often():
    cache = make("lfu")
    often, late = fill(cache, [1, 2]), fill(cache, [3, 4])
    touch(cache, [1, 2])
    touch(cache, [3, 4])
    touch(cache, [1, 2])
    touch(cache, [3, 4])
    touch(cache, [1, 2])
    later = fill(cache, [5, 6])
    assert cache.eviction_order().tolist() == [*later, *late, *often]


def test_priority_and_ttl():
    cache = make("priority+ttl", 8)
    high = fill(cache, [1, 2], priority=5, ttl_s=10)
    low, plain = fill(cache, [3, 4], priority=-1), fill(cache, [5, 6])
    assert cache.eviction_order().tolist() == [*low, *plain, *high]
    cache.set_time(9.5)
    assert cache.eviction_order().tolist() == [*low, *plain, *high]
    cache.set_time(10)
    assert cache.eviction_order().tolist() == [*high, *low, *plain]


def test_a_chain_is_evicted_from_its_end_whatever_its_priorities():
    cache = make("priority+ttl", 4)
    first, second = fill(cache, [1, 2, 3, 4], priority=3)
    touch(cache, [1, 2])  # released with priority 0: lower than the block behind it
    assert cache.eviction_order().tolist() == [second, first]


def test_cost_prefers_to_lose_what_is_cheap():
    cache = make("cost", 8)
    deep = fill(cache, range(8))
    cheap = fill(cache, [50, 51])
    assert cache.eviction_order().tolist()[0] == cheap[0]
    assert cache.eviction_order().tolist()[1:] == deep[::-1]


def test_the_protocol_is_what_the_cache_calls():
    policy = MostRecentFirst()
    assert isinstance(policy, EvictionPolicy)
    cache = make(policy, 2)
    first, second = fill(cache, [1, 2, 3, 4], priority=7, ttl_s=1)
    heard = [call[:2] for call in policy.heard]
    assert heard == [("insert", second), ("insert", first)]
    info = policy.heard[0][2]
    assert isinstance(info, BlockInfo)
    assert (info.priority, info.expires_at, info.parent) == (7, 1.0, first)
    assert info.cost > policy.heard[1][2].cost > 0
    fill(cache, [5, 6])
    assert policy.heard[2] == ("evict", first)
    cache.check()


def test_policies_by_module_and_class():
    cache = make("kvcache_reference_policies:MostRecentFirst")
    fill(cache, [1, 2])
    last = fill(cache, [3, 4])
    assert cache.eviction_order().tolist()[0] == last[0]


class Rebel(MostRecentFirst):
    """Does what `deed` says instead of one of its methods."""

    def __init__(self, method, deed):
        super().__init__()
        deeds = {"method": method, "deed": deed, "armed": False}
        self.__dict__.update(deeds)
        original = getattr(self, method)

        def rebel(*arguments):
            return self.deed() if self.armed else original(*arguments)

        setattr(self, method, rebel)


def oops():
    raise RuntimeError("oops")


@pytest.mark.parametrize(
    ("method", "deed"),
    [
        ("evict", oops),
        ("evict", lambda: 1),  # in use
        ("evict", lambda: 77),  # outside the pool
        ("evict", lambda: -1),
        ("evict", lambda: None),
        ("evict", lambda: "block"),
    ],
)
def test_a_policy_that_cannot_evict(method, deed):
    policy = Rebel(method, deed)
    cache = make(policy, 4)
    holder = cache.open([8, 8, 8, 8])
    cache.grow(holder, 4)
    fill(cache, [1, 2, 3, 4])
    seq = cache.open([5] * 4)
    before = cache.stats()
    policy.armed = True
    with pytest.raises(PolicyError):
        cache.grow(seq, 4)
    policy.armed = False
    assert cache.num_reserved(seq) == 0
    assert cache.block_table(seq).tolist() == []
    assert cache.block_table(holder).tolist() == [0, 1]
    after = cache.stats()
    assert (after.used, after.sequences) == (before.used, before.sequences)
    assert after.free + after.cached + after.used == after.num_blocks
    cache.release_many([seq, holder])


def test_a_policy_that_fails_at_insert_loses_the_contents_and_nothing_else():
    policy = Rebel("insert", oops)
    cache = make(policy, 4)
    seq = cache.open([1, 2, 3, 4])
    cache.grow(seq, 4)
    cache.commit(seq, 4)
    policy.armed = True
    with pytest.raises(PolicyError, match="oops"):
        cache.release(seq)
    policy.armed = False
    stats = cache.stats()
    assert (stats.free, stats.cached, stats.used, stats.sequences) == (4, 0, 0, 0)
    cache.check()
    assert cache.match(cache.open([1, 2, 3, 4])) == 0


@pytest.mark.parametrize("method", ["remove", "touch"])
def test_a_policy_that_fails_at_a_hit_leaves_the_sequence_as_it_was(method):
    policy = Rebel(method, oops)
    cache = make(policy, 4)
    fill(cache, [1, 2, 3, 4])
    seq = cache.open([1, 2, 3, 4, 5])
    policy.armed = True
    with pytest.raises(PolicyError, match="oops"):
        cache.match(seq)
    policy.armed = False
    assert (cache.num_reserved(seq), cache.stats().used) == (0, 0)
    assert cache.match(seq) == 4
    cache.check()


def test_a_policy_that_fails_at_a_second_block_of_a_hit():
    policy = Rebel("remove", oops)
    cache = make(policy, 4)
    fill(cache, [1, 2, 3, 4])
    original, calls = policy.remove, []

    def second_fails(block):
        calls.append(block)
        if len(calls) == 2:
            oops()
        MostRecentFirst.remove(policy, block)

    policy.remove = second_fails
    seq = cache.open([1, 2, 3, 4, 5])
    with pytest.raises(PolicyError, match="oops"):
        cache.match(seq)
    policy.remove = original
    assert (cache.num_reserved(seq), cache.stats().used, cache.stats().cached) == (0, 0, 2)
    cache.check()
    assert cache.match(seq) == 4


def test_a_policy_that_calls_its_cache_is_refused_at_once():
    caught = []
    policy = MostRecentFirst()
    cache = make(policy, 4)
    original = policy.insert

    def insert(block, info):
        try:
            cache.stats()
        except PolicyError as error:
            caught.append(str(error))
        original(block, info)

    policy.insert = insert
    thread = threading.Thread(target=fill, args=(cache, [1, 2, 3, 4]), daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive(), "the policy's call of the cache waits for itself"
    assert len(caught) == 2
    assert "must not call" in caught[0]
    assert cache.stats().cached == 2
    cache.check()


def test_a_policy_may_use_another_thread_meanwhile():
    """The GIL is free while a cache waits for its lock: a policy in Python cannot block itself."""
    policy = MostRecentFirst()
    cache = make(policy, 64)
    failures = []

    def work(number):
        try:
            for i in range(100):
                fill(cache, [number, i % 7, 1, 2, 3, 4])
        except (KVCacheError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
    cache.check()


def test_the_order_of_a_policy_is_checked():
    policy = MostRecentFirst()
    cache = make(policy, 4)
    fill(cache, [1, 2])
    policy.cached.clear()
    with pytest.raises(InvariantError, match="policy"):
        cache.check()


def overwrite(cache, seq):
    cache.truncate(seq, 3)
    cache.grow(seq, 2)


FAILING_CALLS = {
    "grow into a findable block": ("forget", overwrite),
    "reset": ("forget", lambda cache, seq: (cache.release(seq), cache.reset_prefix_cache())),
    "reset, remove": ("remove", lambda cache, seq: (cache.release(seq), cache.reset_prefix_cache())),
    "set_quota, forget": ("forget", lambda cache, seq: cache.set_quota("a", 1)),
    "set_quota, remove": ("remove", lambda cache, seq: cache.set_quota("a", 1)),
    "set_quota, order": ("order", lambda cache, seq: cache.set_quota("a", 1)),
    "a full tenant, forget": ("forget", lambda cache, seq: cache.grow(cache.open([5], tenant="a"), 3)),
    "a full tenant, remove": ("remove", lambda cache, seq: cache.grow(cache.open([5], tenant="a"), 3)),
    "a partial hit, touch": ("touch", lambda cache, seq: cache.match(cache.open([7, 7, 7, 1, 1]))),
    "a partial hit, insert": ("insert", lambda cache, seq: cache.match(cache.open([7, 7, 7, 1, 1]))),
    "a partial hit, evict": ("evict", lambda cache, seq: cache.match(cache.open([7, 7, 7, 1, 1]))),
    "pin": ("remove", lambda cache, seq: cache.pin(cache.open([7, 7, 7, 7]))),
    "time": ("set_time", lambda cache, seq: cache.set_time(3)),
}


@pytest.mark.parametrize(("method", "call"), FAILING_CALLS.values(), ids=FAILING_CALLS)
def test_whatever_fails_the_cache_stays_consistent(method, call):
    """Regression: blocks leaked, or stayed findable while free, where `forget` or `insert` failed."""
    policy = Rebel(method, oops)
    cache = make(policy, 6, partial_reuse=True)
    cache.set_quota("a", 4)
    for tokens in ([7, 7, 7, 7], [8, 8, 8, 8]):
        old = cache.open(tokens, tenant="a")
        cache.grow(old, 4)
        cache.commit(old, 4)
        cache.release(old)
    seq = cache.open([1, 2, 3, 4])
    cache.grow(seq, 4)
    cache.commit(seq, 4)
    policy.armed = True
    with pytest.raises(PolicyError, match="oops"):
        call(cache, seq)
    policy.armed = False
    cache.check()
    again = cache.open([7, 7, 7, 7, 7])
    cache.match(again)
    cache.check()
    cache.grow(again, 1)
    cache.check()
