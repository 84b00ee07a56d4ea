"""A router that sees only a cache's events knows what the cache finds."""

import random

import numpy as np
import pytest
from llm_kvcache import (
    EventGap,
    EventsDisabled,
    Follower,
    FullAttention,
    KVCache,
    SlidingWindow,
    block_hashes,
)
from llm_kvcache.events import decode, encode


def compute(cache, tokens, **keys):
    """Opens a sequence, computes all of its tokens, and returns it with what was found."""
    seq = cache.open(tokens, **keys)
    hit = cache.match(seq)
    if not cache.grow(seq, len(tokens) - hit):
        cache.release(seq)
        return None, hit
    transfers = cache.take_transfers()
    if transfers.batch is not None:
        cache.finish_transfers(transfers.batch)
    cache.commit(seq, len(tokens))
    return seq, hit


def test_stored_blocks_are_named_as_a_router_names_them():
    cache = KVCache([FullAttention(4)], 16, events_capacity=100)
    tokens = list(range(11))
    compute(cache, tokens, lora="adapter@3")
    (stored,) = cache.events().events
    assert stored.keys == tuple(block_hashes(tokens, 4, lora="adapter@3"))
    assert stored.parent is None
    assert list(stored.token_ids) == tokens[:8]
    assert (stored.block_size, stored.group, stored.tier, stored.lora) == (4, 0, "device", "adapter@3")
    assert not stored.has_extra_keys


def test_a_longer_sequence_names_the_parent():
    cache = KVCache([FullAttention(4)], 16, events_capacity=100)
    seq, _ = compute(cache, list(range(8)))
    cache.append(seq, [8, 9, 10, 11])
    cache.grow(seq, 4)
    cache.commit(seq, 12)
    hashes = block_hashes(list(range(12)), 4)
    _, second = cache.events().events
    assert (second.parent, second.keys) == (hashes[1], (hashes[2],))


def test_salts_and_media_are_extra_keys():
    cache = KVCache([FullAttention(2)], 16, events_capacity=100)
    compute(cache, [1, 2, 3, 4], salt=b"secret")
    compute(cache, [1, 2, 3, 4], media=[(3, b"image")])
    assert [event.has_extra_keys for event in cache.events().events] == [True, True]


def test_a_follower_too_far_behind_goes_on_from_a_snapshot():
    cache = KVCache([FullAttention(1)], 64, events_capacity=8)
    for start in range(0, 40, 4):
        seq, _ = compute(cache, list(range(start, start + 4)))
        cache.release(seq)
    follower = Follower()
    with pytest.raises(EventGap):
        cache.events(0)
    follower.apply(cache.events_snapshot())
    seq, _ = compute(cache, [100, 101])
    follower.apply(cache.events(follower.next_seq))
    assert len(follower.keys("device")) == 42


def test_without_a_log_there_are_no_events():
    cache = KVCache([FullAttention(1)], 4)
    for ask in (cache.events, cache.events_snapshot):
        with pytest.raises(EventsDisabled):
            ask()


@pytest.mark.parametrize("seed", range(20))
def test_the_follower_knows_what_can_be_found(seed):
    """Over evictions, windows, a host tier and resets, with batches that crossed the wire."""
    draw = random.Random(seed)
    groups = [FullAttention(2), SlidingWindow(4, 5)] if seed % 2 else [FullAttention(2)]
    cache = KVCache(groups, 14, host_blocks=draw.choice([0, 6]), events_capacity=10_000)
    follower, live = Follower(), []
    for _ in range(60):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 14))]
        seq, _ = compute(cache, np.array(tokens, np.int32))
        if seq is not None:
            live.append(seq)
        while live and (len(live) > 2 or draw.random() < 0.3):
            cache.release(live.pop(draw.randrange(len(live))))
        if draw.random() < 0.05:
            cache.reset_prefix_cache()
        follower.apply(decode(encode(cache.events(follower.next_seq, limit=draw.choice([3, None])))))
        if follower.next_seq != cache.events_snapshot().seq:
            continue
        fresh = Follower()
        fresh.apply(cache.events_snapshot())
        for tier in ("device", "host"):
            for group in range(len(groups)):
                assert follower.keys(tier, group=group) == fresh.keys(tier, group=group)
    assert follower.next_seq > 20
    cache.check()
