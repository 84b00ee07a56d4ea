"""How long requests waited for their first step is told once, and nothing of it is kept."""

import time

import msgspec
import pytest
from llm_engine.core.messages import Abort
from llm_engine.mailbox import join_deltas
from llm_engine.outputs import RequestDelta
from test_engine_core_loop import make_core, request, run


def waits_of(core):
    """Per request what each of its rows tells."""
    waits = {}
    while core.has_work():
        for row in core.step().rows:
            waits.setdefault(row.request_id, []).append(row.queue_s)
    return waits


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_the_wait_comes_with_the_first_tokens_only(overlap):
    core = make_core(overlap, max_num_seqs=1)
    begun_s = time.monotonic()
    core.intake([request("first", [1, 2, 3]), request("second", [4, 5])])
    time.sleep(0.02)
    waits = waits_of(core)
    took_s = time.monotonic() - begun_s
    assert 0.02 <= waits["first"][0] < waits["second"][0] < took_s
    assert all(waits[name][1:] == [0.0] * 7 for name in ("first", "second"))


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_nothing_is_kept_of_requests_that_ended(overlap):
    core = make_core(overlap, num_blocks=6, max_num_seqs=2)
    names = [f"r{number}" for number in range(12)]
    core.intake([request(name, [number] * 9, seed=number % 4) for number, name in enumerate(names)])
    assert len(core._queue_times) == 12
    core.step()
    core.intake([Abort(names[5:])])
    run(core)
    assert len(core._queue_times) == 0


def test_joined_deltas_keep_it():
    delta = RequestDelta(request_id="a", index=0, text="", token_ids=(1,), queue_s=0.5)
    assert join_deltas(delta, msgspec.structs.replace(delta, queue_s=0.0)).queue_s == 0.5
