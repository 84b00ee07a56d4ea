"""The host tier call by call: what goes there, what comes back, and what failures leave behind."""

import numpy as np
import pytest
from kvcache_checked_cache import CheckedCache
from llm_kvcache import COPY, LOAD, STORE, FullAttention, InvalidArgument, KVCache, SlidingWindow


def serve(checked, tokens, **step):
    """Computes all tokens of a sequence in one step."""
    seq = checked.open(tokens)
    checked.match(seq)
    assert checked.grow(seq, len(tokens) - checked.cache.num_reserved(seq))
    checked.step([seq], 100, **step)
    checked.verify()
    return seq


def evicted(num_blocks, host_blocks, tokens, **options):
    """A cache that held these tokens and gave them to the host for others."""
    checked = CheckedCache([FullAttention(4)], num_blocks, host_blocks=host_blocks, **options)
    checked.release(serve(checked, tokens))
    checked.release(serve(checked, [9] * (4 * num_blocks)))
    assert checked.cache.stats().host_used == len(tokens) // 4
    return checked


def test_evicted_contents_come_back():
    checked = evicted(4, 8, range(9))
    seq = checked.open(range(9))
    assert checked.match(seq) == 8
    stats = checked.cache.stats()
    assert (stats.hits, stats.host_hits) == (8, 8)
    transfers = checked.cache.take_transfers()
    assert transfers.moves.dtype == np.int32
    assert transfers.moves[:, 0].tolist() == [STORE, STORE, LOAD, LOAD]
    assert transfers.batch is not None
    checked.cache.finish_transfers(transfers.batch)
    checked.cache.check()


def test_nothing_is_due_twice_and_copies_need_no_end():
    cache = KVCache([FullAttention(4)], 4, host_blocks=2)
    parent = cache.open([1, 2])
    cache.grow(parent, 2)
    cache.grow(cache.fork(parent), 1)
    first, second = cache.take_transfers(), cache.take_transfers()
    assert first.batch is None
    assert first.moves.tolist() == [[COPY, 0, 1]]
    assert second.batch is None
    assert second.moves.shape == (0, 3)


def test_what_is_on_its_way_cannot_be_found():
    checked = CheckedCache([FullAttention(4)], 2, host_blocks=4)
    checked.release(serve(checked, range(5)))
    checked.release(serve(checked, [9] * 8, host="works later"))
    assert checked.cache.stats().host_used == 1
    seq = checked.open(range(5))
    assert checked.match(seq) == 0
    checked.finish(next(iter(checked.waiting)))
    assert checked.match(seq) == 4
    checked.verify()


def test_a_failed_store_is_forgotten():
    checked = CheckedCache([FullAttention(4)], 2, host_blocks=4)
    checked.release(serve(checked, range(5)))
    seq = serve(checked, [9] * 8, host="fails later")
    checked.finish(next(iter(checked.waiting)))
    assert checked.cache.stats().host_used == 0
    assert seq in checked.live  # what it computed is there, whatever became of the store
    assert checked.match(checked.open(range(5))) == 0
    checked.verify()


@pytest.mark.parametrize("host_blocks", [2, 3])
def test_making_room_for_a_load_does_not_push_it_out(host_blocks):
    """Regression: the load needs blocks, whose contents go to the host in place of what is wanted."""
    checked = evicted(2, host_blocks, range(8))
    seq = checked.open(range(8))
    assert checked.match(seq) == 4
    checked.verify()
    checked.step([seq], 100)
    checked.verify()


@pytest.mark.parametrize("released_before_the_step", [False, True])
@pytest.mark.parametrize("ends", ["works", "fails later"])
def test_a_block_that_did_not_arrive_is_not_found(released_before_the_step, ends):
    """Regression: a sequence cut into a block that is being loaded made its first tokens findable."""
    checked = evicted(4, 8, range(8), partial_reuse=True)
    seq = checked.open(range(9))
    assert checked.match(seq) == 8
    checked.truncate(seq, 2)
    if released_before_the_step:
        checked.release(seq)
    checked.step([], 1, host=ends)
    for batch in list(checked.waiting):
        checked.finish(batch)
    checked.verify()
    reader = checked.open([0, 1, 7, 7, 7])
    checked.match(reader)
    checked.step([reader], 100)
    checked.verify()


def test_blocks_that_a_window_gave_back_can_be_stored():
    checked = CheckedCache([FullAttention(2), SlidingWindow(2, 3)], 8, host_blocks=8)
    checked.release(serve(checked, range(8)))
    checked.release(serve(checked, [9] * 8))
    seq = checked.open(range(8))
    assert checked.match(seq) == 6
    checked.verify()
    checked.step([seq], 100)
    checked.verify()


def test_reset_forgets_the_host_too():
    checked = evicted(4, 8, range(9))
    checked.reset_prefix_cache()
    assert checked.cache.stats().host_used == 0
    assert checked.match(checked.open(range(9))) == 0
    checked.verify()


def test_batches_end_once():
    cache = KVCache([FullAttention(4)], 4, host_blocks=2)
    for batch in (-1, 0, 1, 7):
        with pytest.raises(InvalidArgument, match="batch"):
            cache.finish_transfers(batch)
    cache.check()


def test_a_failure_names_all_who_waited():
    """Regression: forks of a sequence share the blocks that did not arrive."""
    checked = evicted(8, 8, range(9))
    bystander = checked.open([1])
    first, gone, anew = (checked.open(range(9)) for _ in range(3))
    assert checked.match(first) == 8
    fork = checked.fork(first)
    assert checked.match(gone) == 8
    checked.release(gone)
    checked.match(anew)
    checked.shrink(anew, 0)
    transfers = checked.cache.take_transfers()
    assert checked.cache.finish_transfers(transfers.batch, succeeded=False) == [first, fork]
    assert checked.cache.num_reserved(bystander) == 0
    checked.cache.check()
