"""The multiprocess executor with two real ranks over gloo."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from llm_distributed import (
    CallFailed,
    CodecError,
    ExecutorError,
    MultiprocessExecutor,
    NotRunning,
    StartFailed,
    StepFailed,
    WorkerDied,
)

HERE = Path(__file__).parent


@pytest.fixture(autouse=True, scope="module")
def importable_workers():
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def shared(importable_workers):
    """One pair of ranks for the tests that leave it alive."""
    executor = MultiprocessExecutor("distributed_workers:make_adder", {"start": 100}, 2)
    executor.start()
    yield executor
    executor.shutdown()


@pytest.fixture
def pair(importable_workers):
    """A pair of ranks of one's own, to be broken."""
    executor = MultiprocessExecutor("distributed_workers:make_adder", {}, 2, failure_grace_s=0.5)
    executor.start()
    yield executor
    executor.shutdown()


def plan(step, add=0, **more):
    return {"step": step, "add": add, **more}


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_until(condition, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.02)


def test_a_method_runs_on_both_ranks(shared):
    places = shared.call("where", "tp")
    assert [place[:2] for place in places] == [[0, 2], [1, 2]]
    assert [place[2] for place in places] == shared.pids
    assert os.getpid() not in shared.pids
    assert [place[:2] for place in shared.call("where", "dp")] == [[0, 1], [0, 1]]


def test_rank_0_decides(shared):
    assert shared.call("decide", 40) == [40, 40]


def test_arrays_cross_the_border(shared):
    for gathered in shared.call("gather"):
        assert np.array_equal(gathered, np.array([[0.0, 1.0], [0.0, 1.0]], np.float32))


def test_plans_run_in_order_and_are_reduced_over_ranks(shared):
    before = shared.submit(plan(0)).result()["total"]
    pending = [shared.submit(plan(step, add=step)) for step in range(1, 6)]
    results = [p.result() for p in pending]
    assert [r["step"] for r in results] == [1, 2, 3, 4, 5]
    assert [r["total"] - before for r in results] == [2, 6, 12, 20, 30]
    assert pending[2].done()
    assert pending[2].result() == results[2]
    first, second = shared.call("history")
    assert first == second
    assert first[-6:] == [0, 1, 2, 3, 4, 5]


def test_results_may_be_taken_late_and_out_of_order(shared):
    early, late = shared.submit(plan(7)), shared.submit(plan(8))
    assert len(shared.call("where", "tp")) == 2
    assert late.result()["step"] == 8
    assert early.result()["step"] == 7


def test_a_worker_that_raises_fails_its_step_only(shared):
    bad = shared.submit(plan(1, raise_on="all"))
    good = shared.submit(plan(2))
    with pytest.raises(StepFailed, match="ValueError: bad plan 1") as caught:
        bad.result()
    assert caught.value.rank == 0
    assert "in execute" in caught.value.details
    assert good.result()["step"] == 2
    with pytest.raises(StepFailed, match="the device found it later"):
        shared.submit(plan(3, late_error=True)).result()
    assert shared.submit(plan(4)).result()["step"] == 4


def test_a_call_that_raises_on_one_rank(shared):
    with pytest.raises(CallFailed, match="fail failed on rank 1: KeyError") as caught:
        shared.call("fail", 1)
    assert (caught.value.rank, caught.value.error_type) == (1, "KeyError")
    with pytest.raises(CallFailed, match="AttributeError"):
        shared.call("no_such_method")
    assert len(shared.call("where", "tp")) == 2


def test_what_cannot_be_encoded_is_refused_before_it_is_sent(shared):
    with pytest.raises(CodecError, match="object"):
        shared.submit({"step": object()})
    assert len(shared.call("where", "tp")) == 2


def test_a_killed_rank_brings_all_down_within_seconds(pair):
    pids = pair.pids
    pending = pair.submit(plan(1))
    pending.result()
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerDied, match="rank 1 died: its process was killed by SIGKILL") as caught:
        pair.submit(plan(2)).result()
    assert time.monotonic() - start < 5
    assert caught.value.rank == 1
    wait_until(lambda: not any(map(alive, pids)), 5)
    with pytest.raises(WorkerDied):
        pair.call("history")


def test_a_rank_killed_while_idle_is_noticed(pair):
    os.kill(pair.pids[0], signal.SIGKILL)

    def noticed():
        try:
            pair.check()
        except WorkerDied as error:
            return error.rank == 0
        return False

    wait_until(noticed, 2)


def test_a_rank_that_leaves_the_others_waiting_is_fatal(pair):
    pids = pair.pids
    with pytest.raises(WorkerDied, match=r"rank 1 died: it raised while ranks \[0\] .*bad plan 1"):
        pair.submit(plan(1, raise_on=1)).result()
    wait_until(lambda: not any(map(alive, pids)), 5)


def test_shutdown_ends_the_processes_and_removes_the_sockets(importable_workers):
    executor = MultiprocessExecutor("distributed_workers:make_adder", {}, 2)
    executor.start()
    pids, folder = executor.pids, Path(executor._running.folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    executor.shutdown()
    executor.shutdown()
    assert not any(map(alive, pids))
    assert not folder.exists()
    with pytest.raises(NotRunning):
        executor.submit(plan(1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_start_error_carries_the_last_line(importable_workers, rank):
    executor = MultiprocessExecutor("distributed_workers:make_nothing", {"rank": rank}, 2)
    with pytest.raises(StartFailed, match="FileNotFoundError: no weights here") as caught:
        executor.start()
    assert caught.value.rank == rank
    assert "make_nothing" in caught.value.details
    with pytest.raises(NotRunning):
        executor.call("where", "tp")


def test_a_rank_that_exits_during_the_start(importable_workers):
    with pytest.raises(StartFailed, match="rank 1 did not start: its process exited with status 7"):
        MultiprocessExecutor("distributed_workers:exit_early", {}, 2).start()


def test_a_start_that_takes_too_long(importable_workers):
    executor = MultiprocessExecutor("distributed_workers:make_adder", {}, 1, start_timeout_s=0.05)
    with pytest.raises(StartFailed, match="not ready after"):
        executor.start()


def test_a_factory_that_is_not_there():
    with pytest.raises(StartFailed, match="cannot load 'no_such_module:thing'"):
        MultiprocessExecutor("no_such_module:thing", {}, 1).start()
    with pytest.raises(ExecutorError, match="module:attribute"):
        MultiprocessExecutor("x:y", {}, 1, codec="nonsense")
    with pytest.raises(ExecutorError, match="world_size"):
        MultiprocessExecutor("x:y", {}, 0)
    with pytest.raises(ExecutorError, match="axis"):
        MultiprocessExecutor("x:y", {}, 1, axis="xx")


_PARENT = """
import time
from llm_distributed import MultiprocessExecutor
executor = MultiprocessExecutor("distributed_workers:make_adder", {}, 2)
executor.start()
print(*executor.pids, executor._running.folder, flush=True)
executor.call("sleep", 60)
"""


def test_ranks_die_with_a_killed_parent(importable_workers):
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, env=environment
    )
    *pids, folder = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), 10)
    for leftover in Path(folder).iterdir():
        leftover.unlink()
    Path(folder).rmdir()
