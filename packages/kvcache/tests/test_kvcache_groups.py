"""Groups of every kind by example: what a window gives back, where groups agree, what states do."""

import pytest
from llm_kvcache import (
    ChunkedLocal,
    FullAttention,
    KVCache,
    MLALatent,
    RecurrentState,
    SlidingWindow,
)


def compute(cache, tokens):
    seq = cache.open(tokens)
    cache.match(seq)
    assert cache.grow(seq, len(tokens) - cache.num_reserved(seq))
    cache.commit(seq, len(tokens))
    return seq


@pytest.mark.parametrize(
    ("group", "held"),
    [
        (FullAttention(2), [0, 1, 2, 3]),
        (MLALatent(2), [0, 1, 2, 3]),
        (SlidingWindow(2, 4), [2, 3]),  # token 8 sees 5 to 8
        (SlidingWindow(2, 5), [2, 3]),  # 4 to 8
        (SlidingWindow(2, 6), [1, 2, 3]),
        (SlidingWindow(2, 1), []),
        (ChunkedLocal(2, 4), []),  # token 8 starts a chunk
        (ChunkedLocal(2, 5), [2, 3]),
        (RecurrentState(2), [3]),
    ],
)
def test_what_a_sequence_holds_after_eight_tokens(group, held):
    cache = KVCache([group], 8)
    seq = cache.open(range(8))
    assert cache.grow(seq, 8)
    cache.commit(seq, 8)
    table = cache.block_table(seq)
    assert [i for i, block in enumerate(table) if block >= 0] == held
    assert cache.stats().used == len(held)
    assert cache.stats().cached == 4 - len(held)
    assert cache.capacity(seq) == 8


@pytest.mark.parametrize("group", [SlidingWindow(2, 1), ChunkedLocal(2, 4)])
def test_where_no_group_needs_anything_nothing_need_be_cached(group):
    """At a border of chunks, say, the next token sees none of those before it, in any layer."""
    cache = KVCache([group], 8)
    seq = cache.open(range(5))
    assert cache.match(seq) == 4
    assert cache.block_table(seq).tolist() == [-1, -1]
    with_full = KVCache([group, FullAttention(2)], 8)
    assert with_full.match(with_full.open(range(5))) == 0


def test_groups_of_different_block_sizes_agree_on_one_hit():
    cache = KVCache([FullAttention(4), SlidingWindow(6, 8)], 32)
    cache.release(compute(cache, range(40)))
    for length, hit in [(12, 0), (13, 12), (24, 12), (25, 24), (40, 36)]:
        seq = cache.open(range(length))
        assert cache.match(seq) == hit
        assert (cache.num_reserved(seq), cache.num_computed(seq)) == (hit, hit)
        cache.release(seq)
    cache.check()


def test_a_hit_goes_down_to_where_all_groups_still_have_what_they_need():
    cache = KVCache([FullAttention(2), SlidingWindow(2, 3)], 12)
    cache.release(compute(cache, range(8)))
    # Of the window's blocks the last was released last; eviction in the order of release takes earlier ones.
    taker = cache.open([9] * 9)
    assert cache.grow(taker, 4 * 2)
    seq = cache.open(range(9))
    hit = cache.match(seq)
    tables = [cache.block_table(seq, group).tolist() for group in (0, 1)]
    assert len(tables[0]) == len(tables[1]) == hit // 2
    cache.check()


def test_shrinking_behind_a_window_starts_anew():
    cache = KVCache([SlidingWindow(2, 4)], 8)
    seq = compute(cache, range(8))
    assert cache.shrink(seq, 7) == 7
    assert cache.shrink(seq, 6) == 0
    assert cache.num_tokens(seq) == 8
    assert cache.match(seq) == 6


def test_states_go_on_from_checkpoints_only():
    cache = KVCache([RecurrentState(4)], 8)
    seq = compute(cache, range(10))
    assert cache.block_table(seq).tolist()[:2] == [-1, -1]
    assert cache.truncate(seq, 9) == 0
    assert cache.match(seq) == 8
    assert cache.block_table(seq).tolist()[0] == -1


def test_a_fork_with_a_step_in_flight_does_not_share_the_state():
    cache = KVCache([RecurrentState(4)], 8)
    seq = compute(cache, range(6))
    settled = cache.fork(seq)
    assert cache.num_reserved(settled) == 6
    assert cache.grow(seq, 1)  # a step may write the state from now on
    assert len(cache.take_transfers().moves) == 1
    late = cache.fork(seq)
    assert cache.num_reserved(late) == 0
    assert cache.match(late) == 4


def test_growth_tells_each_group_apart():
    cache = KVCache([FullAttention(2), SlidingWindow(3, 6)], 32)
    seqs = [cache.open(range(8)), cache.open(range(20, 28))]
    growth = cache.grow_many(seqs, [8, 5])
    for group, sizes in enumerate(([4, 3], [3, 2])):
        blocks, offsets = growth.group(group)
        assert (offsets[1:] - offsets[:-1]).tolist() == sizes
        for row, seq in enumerate(seqs):
            assert blocks[offsets[row] : offsets[row + 1]].tolist() == cache.block_table(seq, group).tolist()
