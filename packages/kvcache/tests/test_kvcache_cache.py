"""The cache's calls one by one: lengths, hits, eviction order, copies on write, errors, threads, size."""

import dataclasses
import threading
import time

import numpy as np
import pytest
from llm_kvcache import (
    COPY,
    CrossAttention,
    FullAttention,
    InvalidArgument,
    KVCache,
    KVCacheError,
    SlidingWindow,
    UnknownSequence,
)


def make(num_blocks=8, block_size=4, **options):
    return KVCache([FullAttention(block_size)], num_blocks, **options)


def fill(cache, tokens, **keys):
    """Runs a sequence through the cache and closes it, so that its full blocks stay cached."""
    seq = cache.open(tokens, **keys)
    cache.match(seq)
    assert cache.grow(seq, len(tokens) - cache.num_reserved(seq))
    cache.commit(seq, len(tokens))
    cache.release(seq)


def test_lengths_of_a_sequence_that_decodes():
    cache = make()
    seq = cache.open(range(6))
    assert (cache.num_tokens(seq), cache.num_reserved(seq), cache.capacity(seq)) == (6, 0, 0)
    assert cache.grow(seq, 6)
    assert (cache.num_tokens(seq), cache.num_reserved(seq), cache.capacity(seq)) == (6, 6, 8)
    assert cache.grow(seq, 2)
    assert len(cache.block_table(seq)) == 2
    assert cache.grow(seq, 1)  # a token in flight, not known yet
    assert (cache.num_tokens(seq), cache.num_reserved(seq), cache.capacity(seq)) == (6, 9, 12)
    cache.append(seq, [7])
    assert (cache.num_tokens(seq), cache.num_reserved(seq)) == (7, 9)


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12), (20, 16)])
def test_the_last_known_token_is_never_matched(length, hit):
    cache = make()
    fill(cache, range(20))
    seq = cache.open(range(length))
    assert cache.match(seq) == hit
    assert cache.num_reserved(seq) == hit
    assert len(cache.block_table(seq)) == hit // 4


@pytest.mark.parametrize(("max_tokens", "hit"), [(0, 0), (3, 0), (4, 4), (11, 8), (None, 12), (1000, 12)])
def test_max_tokens_caps_a_match(max_tokens, hit):
    cache = make()
    fill(cache, range(16))
    seq = cache.open(range(16))
    assert cache.match(seq, max_tokens=max_tokens) == hit
    assert (cache.stats().queries, cache.stats().hits) == (32, hit)


def test_salt_lora_and_media_keep_caches_apart():
    cache = make(64)
    keys = [{}, {"salt": b"a"}, {"salt": b"b"}, {"lora": "a"}, {"lora": "b"}, {"salt": b"a", "lora": "a"}]
    keys += [{"media": [(1, b"cat")]}, {"media": [(1, b"dog")]}, {"media": [(2, b"cat")]}]
    for each in keys:
        seq = cache.open(range(9), **each)
        assert cache.match(seq) == 0
        cache.release(seq)
        fill(cache, range(9), **each)
    for each in keys:
        assert cache.match(cache.open(range(9), **each)) == 8


def test_only_committed_blocks_are_found():
    cache = make()
    seq = cache.open(range(12))
    cache.grow(seq, 12)
    other = cache.open(range(12))
    assert cache.match(other) == 0
    cache.commit(seq, 7)
    assert cache.match(other) == 4


def test_tokens_in_flight_are_published_once_known():
    cache = make()
    seq = cache.open(range(3))
    cache.grow(seq, 5)
    cache.commit(seq, 5)
    assert cache.match(cache.open([0, 1, 2, 3, 4])) == 0
    cache.append(seq, [3, 4])
    cache.commit(seq, 5)
    assert cache.match(cache.open([0, 1, 2, 3, 4])) == 4


def test_the_deepest_block_of_a_chain_is_evicted_first():
    cache = make(4)
    fill(cache, range(16))
    for left in (12, 8, 4, 0):
        taker = cache.open([99])
        assert cache.grow(taker, 4 * (4 - left // 4))
        probe = cache.open(range(17))
        assert cache.match(probe) == left
        cache.release_many([probe, taker])
    assert cache.stats().evictions == 4


def test_the_least_recently_used_chain_is_evicted_first():
    cache = make(4)
    fill(cache, range(100, 108))
    fill(cache, range(200, 208))
    fill(cache, [*range(100, 108)])  # used again
    taker = cache.open([1])
    assert cache.grow(taker, 8)
    assert cache.match(cache.open(range(200, 209))) == 0
    assert cache.match(cache.open(range(100, 109))) == 8


def test_a_duplicate_keeps_the_block_that_is_there():
    cache = make()
    first, second = cache.open(range(5)), cache.open(range(5))
    for seq in (first, second):
        cache.grow(seq, 5)
        cache.commit(seq, 5)
    probe = cache.open(range(5))
    assert cache.match(probe) == 4
    assert cache.block_table(probe)[0] == cache.block_table(first)[0]
    cache.release_many([first, second, probe])
    assert (cache.stats().cached, cache.stats().free) == (1, 7)


def test_growing_into_a_shared_block_copies_it():
    cache = make()
    parent = cache.open(range(6))
    cache.grow(parent, 6)
    cache.commit(parent, 6)
    child = cache.fork(parent)
    assert cache.block_table(child).tolist() == cache.block_table(parent).tolist() == [0, 1]
    growth = cache.grow_many([child, parent], [1, 1])
    assert growth.ok.tolist() == [True, True]
    assert growth.new_blocks.tolist() == []
    assert growth.replaced.tolist() == [[0, 0, 1, 2]]
    assert cache.block_table(child).tolist() == [0, 2]
    assert cache.block_table(parent).tolist() == [0, 1]  # its own by now
    assert cache.take_transfers().moves.tolist() == [[COPY, 1, 2]]
    assert cache.take_transfers().moves.shape == (0, 3)


def test_a_fork_does_not_take_room_for_tokens_in_flight():
    cache = make()
    parent = cache.open(range(4))
    cache.grow(parent, 6)
    child = cache.fork(parent)
    assert cache.num_reserved(child) == 4
    assert cache.block_table(child).tolist() == [0]


def test_a_published_block_is_not_overwritten_after_truncate():
    cache = make()
    seq = cache.open(range(8))
    cache.grow(seq, 8)
    cache.commit(seq, 8)
    reader = cache.open(range(9))
    assert cache.match(reader) == 8
    cache.truncate(seq, 6)
    assert cache.num_tokens(seq) == 6
    assert cache.grow(seq, 2)
    assert cache.block_table(seq)[1] != cache.block_table(reader)[1]
    assert cache.take_transfers().moves.tolist() == [[COPY, 1, 2]]
    # A sole owner keeps its block, which can no longer be found by its old contents.
    cache.release(reader)
    cache.truncate(seq, 3)
    assert cache.grow(seq, 1)
    assert cache.block_table(seq).tolist() == [0]
    assert cache.take_transfers().moves.tolist() == []
    assert cache.match(cache.open(range(9))) == 0


def test_truncate_forgets_the_media_beyond():
    cache = make()
    fill(cache, range(9))
    seq = cache.open(range(9), media=[(6, b"cat")])
    cache.truncate(seq, 6)
    cache.append(seq, [6, 7, 8])
    assert cache.match(seq) == 8
    kept = cache.open(range(9), media=[(5, b"cat")])
    cache.truncate(kept, 6)
    cache.append(kept, [6, 7, 8])
    assert cache.match(kept) == 4


def test_shrink_keeps_the_tokens_for_a_second_match():
    cache = make()
    seq = cache.open(range(10))
    cache.grow(seq, 10)
    cache.commit(seq, 10)
    cache.shrink(seq, 0)
    assert (cache.num_tokens(seq), cache.num_reserved(seq), cache.stats().used) == (10, 0, 0)
    assert cache.match(seq) == 8


def test_grow_is_all_or_nothing_row_by_row():
    cache = make(4)
    seqs = [cache.open(range(4)) for _ in range(3)]
    growth = cache.grow_many(seqs, [8, 12, 5])
    assert growth.ok.tolist() == [True, False, True]
    assert growth.offsets.tolist() == [0, 2, 2, 4]
    assert cache.num_reserved(seqs[1]) == 0
    assert not cache.grow(seqs[1], 1)
    assert cache.grow(seqs[1], 0)
    assert not cache.grow(seqs[0], 2**62)
    cache.check()


def test_reset_waits_until_no_block_is_in_use():
    cache = make()
    fill(cache, range(8))
    holder = cache.open(range(9))
    cache.match(holder)
    assert not cache.reset_prefix_cache()
    assert cache.stats().used == 2
    cache.release(holder)
    assert cache.reset_prefix_cache()
    assert (cache.stats().free, cache.stats().cached) == (8, 0)
    assert cache.match(cache.open(range(9))) == 0


def test_equal_calls_give_equal_blocks():
    """Regression: after a reset, blocks were handed out in the order of a hash table."""
    tables = []
    for _ in range(2):
        cache = make(64)
        fill(cache, range(256))
        assert cache.reset_prefix_cache()
        seq = cache.open([1])
        cache.grow(seq, 256)
        tables.append(cache.block_table(seq).tolist())
    assert tables[0] == tables[1]


def test_without_prefix_caching_nothing_is_kept():
    cache = make(enable_prefix_caching=False)
    fill(cache, range(8))
    assert cache.stats().cached == 0
    assert cache.match(cache.open(range(9))) == 0
    assert cache.stats().queries == 0
    cache.check()


def test_results_are_arrays_of_the_stated_kinds():
    cache = make()
    seq = cache.open(np.arange(5, dtype=np.int32))
    growth = cache.grow_many(np.array([seq]), np.array([5], np.int32))
    assert (growth.ok.dtype, growth.new_blocks.dtype, growth.offsets.dtype) == (bool, np.int32, np.int32)
    assert (growth.replaced.dtype, growth.replaced.shape) == (np.int32, (0, 4))
    table = cache.block_table(seq)
    assert table.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 3
    cache.release(seq)
    assert table.tolist() == growth.new_blocks.tolist()  # a snapshot


@pytest.mark.parametrize("tokens", [[1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3], np.int64)])
def test_any_integers_are_taken(tokens):
    cache = make(block_size=1)
    fill(cache, np.array([1, 2, 3, 9], np.int32)[::1])
    assert cache.match(cache.open(tokens)) == 2
    strided = np.array([1, 0, 2, 0, 3, 0], np.int32)[::2]
    assert cache.match(cache.open(strided)) == 2


BAD_CALLS = [
    ("token_ids", lambda c, s: c.open([1, -1])),
    ("token_ids", lambda c, s: c.open([2**31])),
    ("token_ids", lambda c, s: c.open([10**30])),
    ("token_ids", lambda c, s: c.open([0.5])),
    ("token_ids", lambda c, s: c.open("text")),
    ("token_ids", lambda c, s: c.open([[1], [2]])),
    ("token_ids", lambda c, s: c.open([[1], [2, 3]])),
    ("token_ids", lambda c, s: c.open([True])),
    ("token_ids", lambda c, s: c.open(None)),
    ("token_ids", lambda c, s: c.append(s, [-5])),
    ("token_ids", lambda c, s: c.append_many([s], [-5], [0, 1])),
    ("salt", lambda c, s: c.open([1], salt="text")),
    ("lora", lambda c, s: c.open([1], lora=3)),
    ("media", lambda c, s: c.open([1], media=[(1, b"x")])),
    ("media", lambda c, s: c.open([1], media=[0])),
    ("seq", lambda c, s: c.grow("0", 1)),
    ("seq", lambda c, s: c.release(True)),
    ("seq", lambda c, s: c.match(s)),
    ("max_tokens", lambda c, s: c.match(c.open([1]), max_tokens=-1)),
    ("n", lambda c, s: c.grow(s, -1)),
    ("n", lambda c, s: c.grow(s, 2**64)),
    ("n", lambda c, s: c.grow(s, 1.0)),
    ("n", lambda c, s: c.truncate(s, -1)),
    ("n", lambda c, s: c.shrink(s, -1)),
    ("ns", lambda c, s: c.grow_many([s], [1, 2])),
    ("ns", lambda c, s: c.grow_many([s, s], [1, -2])),
    ("seqs", lambda c, s: c.grow_many([0.0], [1])),
    ("seqs", lambda c, s: c.release_many([s, s])),
    ("offsets", lambda c, s: c.append_many([s], [1], [0])),
    ("offsets", lambda c, s: c.append_many([s], [1], [1, 1])),
    ("offsets", lambda c, s: c.append_many([s], [1], [0, 2])),
    ("offsets", lambda c, s: c.append_many([s, s], [1], [0, 2, 1])),
    ("offsets", lambda c, s: c.append_many([s, s], [1], [-1, 0, 1])),
    ("num_computed", lambda c, s: c.commit(s, 7)),
    ("num_computed", lambda c, s: c.commit(s, -1)),
    ("num_computed", lambda c, s: c.commit_many([s, s], [6, 7])),
    ("num_computed", lambda c, s: c.commit_many([s], [])),
    ("group", lambda c, s: c.block_table(s, 1)),
]


def state(cache, seq):
    held = (
        cache.block_table(seq).tolist(),
        cache.num_tokens(seq),
        cache.num_reserved(seq),
        cache.capacity(seq),
    )
    return held, dataclasses.replace(cache.stats(), sequences=0)


@pytest.mark.parametrize(("field", "call"), BAD_CALLS)
def test_bad_arguments_name_the_field_and_change_nothing(field, call):
    cache = make()
    seq = cache.open(range(6))
    cache.grow(seq, 6)
    before = state(cache, seq)
    with pytest.raises(InvalidArgument) as caught:
        call(cache, seq)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert state(cache, seq) == before
    cache.check()


@pytest.mark.parametrize(
    "call",
    [
        lambda c, s, bad: c.match(bad),
        lambda c, s, bad: c.grow(bad, 1),
        lambda c, s, bad: c.grow_many([s, bad], [1, 1]),
        lambda c, s, bad: c.append(bad, [1]),
        lambda c, s, bad: c.append_many([s, bad], [1, 2], [0, 1, 2]),
        lambda c, s, bad: c.commit(bad, 0),
        lambda c, s, bad: c.commit_many([s, bad], [6, 0]),
        lambda c, s, bad: c.truncate(bad, 0),
        lambda c, s, bad: c.shrink(bad, 0),
        lambda c, s, bad: c.fork(bad),
        lambda c, s, bad: c.release(bad),
        lambda c, s, bad: c.release_many([s, bad]),
        lambda c, s, bad: c.block_table(bad),
        lambda c, s, bad: c.num_tokens(bad),
        lambda c, s, bad: c.capacity(bad),
        lambda c, s, bad: c.num_reserved(bad),
    ],
)
@pytest.mark.parametrize("bad", [-1, 1, 10**15])
def test_unknown_sequences_are_named_and_nothing_changes(call, bad):
    cache = make()
    seq = cache.open(range(6))
    assert seq != 1
    cache.grow(seq, 6)
    before = state(cache, seq)
    with pytest.raises(UnknownSequence, match=str(bad)) as caught:
        call(cache, seq, bad)
    assert caught.value.seq == bad
    assert isinstance(caught.value, KVCacheError)
    assert state(cache, seq) == before


class OtherGroup:
    block_size = 4


@pytest.mark.parametrize(
    ("field", "arguments", "options"),
    [
        ("groups", ([], 8), {}),
        ("groups", ([CrossAttention()], 8), {}),
        ("groups", ([FullAttention()] * 256, 8), {}),
        ("groups", ([FullAttention(2**31 - 1), FullAttention(2)], 8), {}),
        ("groups", ([OtherGroup()], 8), {}),
        ("groups", (FullAttention(), 8), {}),
        ("groups", ("x", 8), {}),
        ("num_blocks", ([FullAttention()], 0), {}),
        ("num_blocks", ([FullAttention()], -1), {}),
        ("num_blocks", ([FullAttention()], 2**31), {}),
        ("num_blocks", ([FullAttention()], 1.5), {}),
        ("policy", ([FullAttention()], 8), {"policy": "fifo"}),
        ("policy", ([FullAttention()], 8), {"policy": "no_such_module:Policy"}),
        ("policy", ([FullAttention()], 8), {"policy": "llm_kvcache:NoSuchPolicy"}),
        ("policy", ([FullAttention()], 8), {"policy": "llm_kvcache:POLICIES"}),
        ("policy", ([FullAttention()], 8), {"policy": OtherGroup()}),
        ("policy", ([FullAttention()], 8), {"policy": None}),
        ("partial_reuse", ([FullAttention()] * 2, 8), {"partial_reuse": True}),
        ("partial_reuse", ([SlidingWindow(4, 8)], 8), {"partial_reuse": True}),
        ("partial_reuse", ([FullAttention()], 8), {"partial_reuse": True, "enable_prefix_caching": False}),
        ("host_blocks", ([FullAttention()], 8), {"host_blocks": -1}),
        ("host_blocks", ([FullAttention()], 8), {"host_blocks": 2**32}),
        ("host_blocks", ([FullAttention()], 8), {"host_blocks": 1, "enable_prefix_caching": False}),
    ],
)
def test_bad_configurations_name_the_field(field, arguments, options):
    with pytest.raises(InvalidArgument) as caught:
        KVCache(*arguments, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("block_size", [0, -1, 2**31, 1.0, True, None])
def test_bad_block_sizes(block_size):
    with pytest.raises(InvalidArgument, match="block_size"):
        FullAttention(block_size)


def test_threads_share_a_cache():
    cache = make(200, 2)
    failures = []

    def work(number):
        try:
            for i in range(150):
                seq = cache.open([number, *range(i % 9)])
                cache.match(seq)
                if cache.grow(seq, 10):
                    cache.append(seq, [1, 2])
                    cache.commit(seq, min(cache.num_tokens(seq), cache.num_reserved(seq)))
                    child = cache.fork(seq)
                    cache.grow_many([seq, child], [3, 3])
                    cache.truncate(child, 1)
                    cache.release(child)
                cache.check()
                cache.release(seq)
        except (KVCacheError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (cache.stats().used, cache.stats().sequences) == (0, 0)


def test_ten_million_blocks():
    started = time.perf_counter()
    cache = make(10_000_000, 16)
    seq = cache.open(np.arange(1000, dtype=np.int32))
    assert cache.grow(seq, 160_000_000)
    assert not cache.grow(cache.open([1]), 1)
    cache.commit(seq, 1000)
    cache.release(seq)
    assert cache.stats().cached == 62
    assert time.perf_counter() - started < 10
