"""Pins, times to live, tenants and quotas call by call, and the typed errors of their arguments."""

import math

import numpy as np
import pytest
from llm_kvcache import (
    CrossAttention,
    FullAttention,
    InvalidArgument,
    KVCache,
    PinQuotaExceeded,
    SlidingWindow,
    UnknownPin,
    UnknownSequence,
)


def make(num_blocks=8, **options):
    return KVCache([FullAttention(2)], num_blocks, **options)


def compute(cache, tokens, **keys):
    seq = cache.open(tokens, **keys)
    cache.match(seq)
    assert cache.grow(seq, len(tokens) - cache.num_reserved(seq))
    cache.commit(seq, len(tokens))
    return seq


def test_a_pin_keeps_its_blocks_from_eviction():
    cache = make(4)
    seq = compute(cache, [1, 2, 3, 4, 5])
    pin = cache.pin(seq)
    assert pin.num_tokens == 4
    cache.release(seq)
    assert (cache.stats().used, cache.stats().pinned) == (2, 2)
    assert not cache.grow(cache.open([9]), 6)
    assert cache.match(cache.open([1, 2, 3, 4, 5])) == 4
    cache.unpin(pin.id)
    with pytest.raises(UnknownPin) as caught:
        cache.unpin(pin.id)
    assert caught.value.pin == pin.id


def test_what_cannot_be_found_is_not_pinned():
    cache = make()
    seq = cache.open([1, 2, 3, 4])
    cache.grow(seq, 4)
    assert cache.pin(seq).num_tokens == 0
    cache.commit(seq, 2)
    assert cache.pin(seq).num_tokens == 2
    assert cache.pin(seq, 1).num_tokens == 0
    without = make(enable_prefix_caching=False)
    assert without.pin(compute(without, [1, 2, 3])).num_tokens == 0


def test_nothing_is_pinned_without_prefix_caching():
    """Regression: groups that need nothing at a length counted that length as kept."""
    cache = KVCache([SlidingWindow(1, 1)], 4, enable_prefix_caching=False)
    assert cache.pin(cache.open([1, 2, 3])).num_tokens == 0


def test_pins_lift_themselves_in_time():
    cache = make()
    seq = compute(cache, [1, 2, 3, 4])
    cache.set_time(100.0)
    pin = cache.pin(seq, ttl_s=5)
    cache.release(seq)
    assert cache.set_time(104.5) == 0
    assert cache.set_time(105) == 1
    assert (cache.stats().pinned, cache.stats().cached) == (0, 2)
    with pytest.raises(UnknownPin):
        cache.unpin(pin.id)


def test_pin_quotas_of_one_and_of_all():
    cache = make()
    mine = compute(cache, [1, 2, 3, 4], tenant="a")
    cache.set_pin_quota(1, tenant="a")
    with pytest.raises(PinQuotaExceeded) as caught:
        cache.pin(mine)
    assert (caught.value.wanted, caught.value.room) == (2, 1)
    cache.pin(mine, 2)
    cache.set_pin_quota(None, tenant="a")
    cache.set_pin_quota(2)
    with pytest.raises(PinQuotaExceeded):
        cache.pin(mine)
    assert cache.stats().pinned == 1
    cache.set_pin_quota(None)
    cache.pin(mine)
    assert cache.stats().pinned == 3
    cache.check()


def test_a_tenant_at_its_quota_evicts_its_own():
    cache = make(8)
    cache.set_quota("a", 2)
    cache.release(compute(cache, [7, 7, 8, 8], tenant="b"))
    cache.release(compute(cache, [1, 2, 3, 4], tenant="a"))
    assert cache.usage("a") == cache.usage("b") == 2
    seq = cache.open([5, 6, 7, 8, 9, 9], tenant="a")
    assert not cache.grow(seq, 5)
    assert cache.grow(seq, 4)
    assert cache.usage("a") == 2
    assert cache.stats().free == 4
    assert cache.match(cache.open([7, 7, 8, 8, 9])) == 4
    assert cache.match(cache.open([1, 2, 3, 4, 5])) == 0
    cache.check()


def test_hits_on_the_blocks_of_others_cost_nothing():
    cache = make()
    cache.set_quota("a", 1)
    compute(cache, [1, 2, 3, 4], tenant="b")
    seq = cache.open([1, 2, 3, 4, 5], tenant="a")
    assert cache.match(seq) == 4
    assert cache.usage("a") == 0
    assert cache.grow(seq, 1)
    assert cache.usage("a") == 1
    assert cache.usage("nobody") == 0


def test_what_a_quota_leaves_is_told_apart_from_what_the_pool_has():
    cache = KVCache([FullAttention(4)], 4)
    cache.set_quota("a", 2)
    assert (cache.quota_room("a"), cache.available("a"), cache.quota_room("b"), cache.quota_room()) == (
        2,
        2,
        4,
        4,
    )
    other = cache.open(range(16), tenant="b")
    assert cache.grow(other, 16)
    assert (cache.quota_room("a"), cache.available("a"), cache.quota_room("b")) == (2, 0, 4)
    cache.release(other)
    seq = cache.open(range(8), tenant="a")
    assert cache.grow(seq, 8)
    assert (cache.quota_room("a"), cache.available("a"), cache.available("b")) == (0, 0, 2)
    cache.commit(seq, 8)
    cache.release(seq)
    assert cache.quota_room("a") == 2  # in place of its own cached blocks
    cache.set_quota("a", None)
    assert cache.quota_room("a") == 4


def test_a_lowered_quota_takes_cached_blocks_at_once_and_used_ones_later():
    cache = make()
    held = compute(cache, [1, 2, 3, 4], tenant="a")
    cache.release(compute(cache, [5, 6], tenant="a"))
    cache.set_quota("a", 1)
    assert (cache.usage("a"), cache.stats().cached) == (2, 0)
    cache.release(held)
    assert (cache.usage("a"), cache.stats().cached) == (1, 1)
    assert cache.stats().evictions == 2
    cache.check()


def test_encoder_blocks_come_with_the_first_growth():
    cache = KVCache([FullAttention(2), CrossAttention(4)], 8)
    seq = cache.open([1, 2, 3], encoder_tokens=9)
    assert cache.block_table(seq, 1).tolist() == []
    assert cache.grow(seq, 1)
    assert len(cache.block_table(seq, 1)) == 3
    assert cache.grow(seq, 2)
    assert len(cache.block_table(seq, 1)) == 3
    assert cache.shrink(seq, 0) == 0
    assert cache.stats().free == 8


BAD_CALLS = [
    ("tenant", lambda c, s, p: c.open([1], tenant=None)),
    ("tenant", lambda c, s, p: c.open([1], tenant=b"a")),
    ("tenant", lambda c, s, p: c.set_quota(None, 1)),
    ("tenant", lambda c, s, p: c.set_pin_quota(1, tenant=3)),
    ("tenant", lambda c, s, p: c.usage(3)),
    ("tenant", lambda c, s, p: c.open([1], tenant="\ud800")),
    ("lora", lambda c, s, p: c.open([1], lora="\ud800")),
    ("media", lambda c, s, p: c.open([1], media=None)),
    ("encoder_tokens", lambda c, s, p: c.open([1], encoder_tokens=-1)),
    ("encoder_tokens", lambda c, s, p: c.open([1], encoder_tokens=1.0)),
    ("num_tokens", lambda c, s, p: c.pin(s, -1)),
    ("num_tokens", lambda c, s, p: c.pin(s, "all")),
    ("ttl_s", lambda c, s, p: c.pin(s, ttl_s=-1)),
    ("ttl_s", lambda c, s, p: c.pin(s, ttl_s=math.nan)),
    ("ttl_s", lambda c, s, p: c.pin(s, ttl_s="1")),
    ("ttl_s", lambda c, s, p: c.set_retention(s, ttl_s=-0.5)),
    ("ttl_s", lambda c, s, p: c.set_retention(s, ttl_s=math.inf)),
    ("priority", lambda c, s, p: c.set_retention(s, priority=2**31)),
    ("priority", lambda c, s, p: c.set_retention(s, priority=0.5)),
    ("pin", lambda c, s, p: c.unpin(p)),
    ("blocks", lambda c, s, p: c.set_quota("a", -1)),
    ("blocks", lambda c, s, p: c.set_quota("a", 1.5)),
    ("blocks", lambda c, s, p: c.set_pin_quota(-1)),
    ("now_s", lambda c, s, p: c.set_time(math.nan)),
    ("now_s", lambda c, s, p: c.set_time("now")),
    ("now_s", lambda c, s, p: c.set_time(10**400)),
    ("now_s", lambda c, s, p: c.set_time(np.complex64(1))),
    ("now_s", lambda c, s, p: c.set_time(None)),
    ("now_s", lambda c, s, p: c.set_time(4.5)),
    ("batch", lambda c, s, p: c.finish_transfers(3)),
    ("batch", lambda c, s, p: c.finish_transfers(None)),
    ("group", lambda c, s, p: c.block_table(s, -1)),
    ("group", lambda c, s, p: c.block_table(s, "0")),
]


@pytest.mark.parametrize(("field", "call"), BAD_CALLS)
def test_bad_arguments_name_the_field_and_change_nothing(field, call):
    cache = make()
    cache.set_time(5.0)
    seq = compute(cache, [1, 2, 3])
    pin = cache.pin(seq)
    before = (cache.stats(), cache.usage("a"), cache.block_table(seq).tolist())
    with pytest.raises(InvalidArgument) as caught:
        call(cache, seq, pin)
    assert caught.value.field == field
    assert (cache.stats(), cache.usage("a"), cache.block_table(seq).tolist()) == before
    cache.check()


@pytest.mark.parametrize(
    "call", [lambda c: c.pin(5), lambda c: c.set_retention(5), lambda c: c.num_computed(5)]
)
def test_unknown_sequences(call):
    with pytest.raises(UnknownSequence, match="5"):
        call(make())


@pytest.mark.parametrize("pin", [-1, 0, 10**12])
def test_unknown_pins(pin):
    with pytest.raises(UnknownPin, match=str(pin)):
        make().unpin(pin)


@pytest.mark.parametrize("size", [0, -1, 2**31, 1.0, True, None])
def test_bad_sizes_of_groups(size):
    with pytest.raises(InvalidArgument, match="window"):
        SlidingWindow(4, size)
    with pytest.raises(InvalidArgument, match="block_size"):
        CrossAttention(size)
