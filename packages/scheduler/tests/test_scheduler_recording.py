"""Records of random runs replay to equal plans; damaged files, full disks and other schedulers are told."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import (
    Busy,
    DeadlineUnmet,
    DuplicateRequest,
    NewRow,
    Ragged,
    Request,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
    TokenBudgetScheduler,
    conformance,
)
from llm_scheduler.recording import RecordError, RecordingScheduler, RecordingStopped, replay, steps_of
from llm_scheduler.recording.values import decode, encode, plain

CONFIG = SchedulerConfig(max_model_len=48, max_num_seqs=4, max_num_batched_tokens=16, max_waiting_requests=6)


class Clock:
    """Goes on by a bit at each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.125
        return self.now


def recorder(path, scheduler="default", config=CONFIG, num_blocks=20, **options):
    cache = KVCache([FullAttention(4)], num_blocks, **options)
    return RecordingScheduler(path, scheduler, config, cache, cache_options=options, clock=Clock())


def request(name, num_tokens=9, max_tokens=6, **fields):
    tokens = np.arange(num_tokens, dtype=np.int32) + sum(map(ord, name))
    return Request(request_id=name, token_ids=tokens, max_tokens=max_tokens, **fields)


def result_of(plan, rng, trouble=0.0):
    rows = [[rng.randrange(20)] if samples else [] for samples in plan.samples]
    faults = {row: "broken" for row in range(plan.num_rows) if rng.random() < trouble}
    logprobs = {row: object() for row in range(plan.num_rows) if plan.samples[row]}
    return StepResult(plan.step_id, Ragged.from_rows(rows), logprobs=logprobs, faults=faults)


def no_extras(turn, rng):
    return {}


def deadlines_and_waits(turn, rng):
    """Every clock look is 1/8 s and a turn takes a few: some of these deadlines are met, some are not."""
    return {
        "deadline_s": rng.choice([None, turn + rng.uniform(1, 40)]),
        "waits_for": rng.choice([frozenset(), frozenset({"grammar"})]),
    }


def drive(scheduler, seed, *, num_turns=120, depth=2, extras=no_extras):
    """Arrivals, aborts, faults and failures, two plans deep; everything ends."""
    rng = random.Random(seed)
    in_flight = []
    for turn in range(num_turns):
        if rng.random() < 0.4:
            fields = {
                "max_tokens": rng.randint(1, 12),
                "stop_token_ids": frozenset(rng.sample(range(20), 2)),
                "priority": rng.randint(0, 2),
                "tenant": rng.choice("ab"),
                "salt": rng.choice([None, b"\xff\x00"]),
                "arrival_s": float(turn),
                "payload": object(),
                **extras(turn, rng),
            }
            with contextlib.suppress(Busy, DuplicateRequest, DeadlineUnmet):
                scheduler.add(request(f"r{turn // rng.choice([1, 1, 3])}", rng.randint(1, 30), **fields))
        if extras is deadlines_and_waits:
            scheduler.ready(f"r{rng.randrange(turn + 1)}", "grammar")
        if rng.random() < 0.05:
            scheduler.abort(f"r{rng.randrange(turn + 1)}" for _ in range(3))
        if len(in_flight) < depth and (plan := scheduler.schedule()) is not None:
            in_flight.append(plan)
        elif in_flight:
            land(scheduler, in_flight.pop(0), rng, trouble=0.03)
    while scheduler.has_work():
        while in_flight:
            land(scheduler, in_flight.pop(0), rng)
        if extras is deadlines_and_waits:
            for turn in range(num_turns):
                scheduler.ready(f"r{turn}", "grammar")
        if (plan := scheduler.schedule()) is not None:
            in_flight.append(plan)


def land(scheduler, plan, rng, trouble=0.0):
    if rng.random() < trouble:
        scheduler.fail(plan, "the step raised")
    else:
        scheduler.update(plan, result_of(plan, rng, trouble))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_random_runs_replay_to_equal_plans(tmp_path, policy, suffix):
    for seed in range(8):
        config = SchedulerConfig(
            max_model_len=48,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_waiting_requests=6,
            policy=policy,
            max_plans_in_flight=1 + seed % 2,
        )
        scheduler = recorder(tmp_path / f"run{suffix}", config=config, enable_prefix_caching=seed % 3 > 0)
        drive(scheduler, seed, depth=1 + seed % 2)
        stats = scheduler.stats()
        scheduler.close()
        report = replay(tmp_path / f"run{suffix}")
        assert report.equal, str(report)
        assert report.num_plans == stats.steps > 20
        assert report.notes == ()
        assert "reaches equal plans" in str(report)


@pytest.mark.parametrize("policy", ["fair", "deadline", "prefix"])
def test_deadlines_and_waits_replay(tmp_path, policy):
    config = SchedulerConfig(max_model_len=48, max_num_seqs=4, max_num_batched_tokens=16, policy=policy)
    ended, refused = 0, 0
    for seed in range(4):
        scheduler = recorder(tmp_path / "run.jsonl", config=config)
        drive(scheduler, seed, extras=deadlines_and_waits)
        ended += scheduler.stats().finished_deadline
        scheduler.close()
        refused += (tmp_path / "run.jsonl").read_text().count('"raised":"DeadlineUnmet"')
        report = replay(tmp_path / "run.jsonl")
        assert report.equal, str(report)
        assert report.notes == ()
    assert ended
    assert refused


def test_swapping_to_the_host_replays(tmp_path):
    for seed in range(4):
        scheduler = recorder(tmp_path / "run.jsonl", num_blocks=14, host_blocks=12)
        drive(scheduler, seed)
        assert scheduler.stats().preemptions
        scheduler.close()
        report = replay(tmp_path / "run.jsonl")
        assert report.equal, str(report)
    assert '"transfers":[[' in (tmp_path / "run.jsonl").read_text()


def test_a_recorder_keeps_the_protocol():
    def factory(config, cache):
        return RecordingScheduler("/dev/null", "default", config, cache)

    conformance.check(factory, conformance.cases(20))
    assert isinstance(factory(CONFIG, KVCache([FullAttention(4)], 8)), Scheduler)


def test_steps_and_their_seconds(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl")
    scheduler.add(request("a", 20, max_tokens=2))
    while scheduler.has_work():
        plan = scheduler.schedule()
        scheduler.update(plan, result_of(plan, random.Random(0)))
    scheduler.close()
    steps = list(steps_of(tmp_path / "run.jsonl"))
    assert [step["num_prefill_tokens"] for step in steps] == [16, 4, 0]
    assert [step["num_decode_rows"] for step in steps] == [0, 0, 1]
    assert [step["context_tokens"] for step in steps] == [0, 0, 21]
    assert [step["prefill_pairs"] for step in steps] == [136, 74, 0]
    assert all(step["seconds"] > 0 for step in steps)


def test_an_overlapped_step_begins_when_the_one_before_it_ends(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl")
    scheduler.add(request("a", 9, max_tokens=4))
    rng = random.Random(0)
    before = scheduler.schedule()
    while before is not None:
        after = scheduler.schedule()
        scheduler.update(before, result_of(before, rng))
        before = after
    scheduler.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    first, last = lines[1]["at_s"], lines[-1]["at_s"]
    total = sum(step["seconds"] for step in steps_of(tmp_path / "run.jsonl"))
    assert total == pytest.approx(last - first, abs=0.3)


class ByTheClock(TokenBudgetScheduler):
    """Sits out every third moment: what it plans depends on when it is asked."""

    def schedule(self):
        return None if int(self._clock() * 8) % 3 == 0 else super().schedule()


class ByItsOwnClock(Scheduler):
    API_VERSION = 1

    def __new__(cls, config, cache):
        return TokenBudgetScheduler(config, cache)


@pytest.fixture(autouse=True)
def _third_party(monkeypatch):
    module = types.ModuleType("third_party_recorded")
    for member in (ByTheClock, ByItsOwnClock, Backwards, WithMore):
        setattr(module, member.__name__, member)
    monkeypatch.setitem(sys.modules, "third_party_recorded", module)


def test_decisions_by_the_clock_replay(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl", "third_party_recorded:ByTheClock")
    drive(scheduler, 3)
    scheduler.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    assert sum(line["call"] == "schedule" and line["plan"] is None for line in lines) > 20
    assert replay(tmp_path / "run.jsonl").equal


def test_a_clock_that_cannot_be_recorded_is_noted(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl", "third_party_recorded:ByItsOwnClock")
    drive(scheduler, 3)
    scheduler.close()
    (note,) = replay(tmp_path / "run.jsonl").notes
    assert "clock of its own" in note


class Backwards(TokenBudgetScheduler):
    """Serves one request fewer at a time."""

    def __init__(self, config, cache, *, clock):
        from dataclasses import replace

        super().__init__(replace(config, max_num_seqs=config.max_num_seqs - 1), cache, clock=clock)


def test_the_first_difference_is_shown_with_both_plans(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl")
    for name in "abcd":
        scheduler.add(request(name, 4))
    plan = scheduler.schedule()
    scheduler.update(plan, result_of(plan, random.Random(0)))
    scheduler.close()
    report = replay(tmp_path / "run.jsonl", "third_party_recorded:Backwards")
    assert not report.equal
    assert report.num_calls == 4
    difference = report.difference
    assert (difference.line, difference.call, difference.what) == (6, "schedule", "slots")
    assert (difference.recorded["slots"], difference.replayed["slots"]) == ([0, 1, 2, 3], [0, 1, 2])
    assert "line 6: schedule differs in slots" in str(report)


class WithMore(TokenBudgetScheduler):
    """Offers a method beyond the protocol that changes what is planned."""

    limit = 3

    def pause(self, steps, *, why=""):
        self.paused = steps

    def schedule(self):
        paused, self.paused = getattr(self, "paused", 0), max(getattr(self, "paused", 0) - 1, 0)
        return None if paused else super().schedule()


def test_methods_beyond_the_protocol_are_recorded_by_name(tmp_path):
    scheduler = recorder(tmp_path / "run.jsonl", "third_party_recorded:WithMore")
    assert scheduler.limit == 3
    scheduler.add(request("a"))
    scheduler.pause(2, why="a test")
    assert [scheduler.schedule() is None for _ in range(3)] == [True, True, False]
    scheduler.pause(object())
    scheduler.close()
    report = replay(tmp_path / "run.jsonl")
    assert report.equal, str(report)
    assert report.num_plans == 1
    assert report.notes == ("not recorded: pause: a object has no form in a record",)
    with pytest.raises(AttributeError):
        _ = scheduler.nothing_of_the_kind


# Files


def recorded_run(path, num_turns=40):
    scheduler = recorder(path)
    drive(scheduler, 1, num_turns=num_turns)
    scheduler.close()
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_record_that_was_cut_off_is_read_up_to_there(tmp_path, suffix):
    path = recorded_run(tmp_path / f"run.{suffix}")
    whole = replay(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4 + 1])
    cut = replay(path)
    assert cut.equal
    assert cut.is_truncated
    assert 0 < cut.num_plans < whole.num_plans
    assert "cut off" in str(cut)


def test_what_is_no_record_is_refused(tmp_path):
    path = recorded_run(tmp_path / "run.jsonl")
    lines = path.read_text().splitlines()
    wrong = {
        "empty": [],
        "header": ["{}", *lines[1:]],
        "version": [lines[0].replace('"version":1', '"version":99'), *lines[1:]],
        "json": [*lines[:3], "{nonsense", *lines[3:]],
        "object": [*lines[:3], "[]", *lines[3:]],
        "call": [*lines[:3], '{"call":"dance","at_s":0}', *lines[3:]],
        "field": [*lines[:3], '{"call":"add","at_s":0,"request":{"size":3}}', *lines[3:]],
    }
    for name, content in wrong.items():
        (tmp_path / name).write_text("\n".join([*content, ""]) if content else "")
        with pytest.raises(RecordError) as caught:
            replay(tmp_path / name)
        assert caught.value.line == {"empty": 0, "header": 1, "version": 1}.get(name, 4)
    with pytest.raises(RecordError, match="No such file"):
        replay(tmp_path / "nothing")
    (tmp_path / "plain.gz").write_text(path.read_text())
    with pytest.raises(RecordError, match="gzip"):
        replay(tmp_path / "plain.gz")


def test_a_full_disk_warns_once_and_the_scheduler_goes_on():
    scheduler = recorder("/dev/full")
    with pytest.warns(RecordingStopped, match="No space left") as caught:
        drive(scheduler, 1)
    assert len(caught) == 1
    assert not scheduler.is_recording
    assert scheduler.stats().steps > 20
    scheduler.close()


def test_a_full_disk_does_not_raise_where_warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = recorder("/dev/full")
        drive(scheduler, 1)
    assert scheduler.stats().steps > 20


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        recorder(tmp_path / "nowhere" / "run.jsonl")


def test_an_idle_scheduler_has_its_record_in_the_file(tmp_path):
    for name in ("run.jsonl", "run.jsonl.gz"):
        scheduler = recorder(tmp_path / name)
        drive(scheduler, 1)
        assert not scheduler.has_work()
        assert replay(tmp_path / name).num_plans == scheduler.stats().steps
        scheduler.close()


def test_a_forgotten_record_is_closed_at_the_end(tmp_path):
    path = tmp_path / "run.jsonl.gz"
    code = (
        "import sys, numpy as np\n"
        "from llm_kvcache import FullAttention, KVCache\n"
        "from llm_scheduler import Request, SchedulerConfig\n"
        "from llm_scheduler.recording import RecordingScheduler\n"
        "cache = KVCache([FullAttention(4)], 8)\n"
        "scheduler = RecordingScheduler(sys.argv[1], 'default', SchedulerConfig(max_model_len=16), cache)\n"
        "scheduler.add(Request(request_id='a', token_ids=np.ones(3, np.int32), max_tokens=2))\n"
        "scheduler.schedule()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 3
    assert replay(path).num_plans == 1


def test_the_command_line(tmp_path):
    path = recorded_run(tmp_path / "run.jsonl")

    def run(*arguments):
        command = [sys.executable, "-m", "llm_scheduler.replay", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    equal = run(path, "--steps", tmp_path / "steps.jsonl")
    assert equal.returncode == 0, equal.stderr
    assert "default reaches equal plans" in equal.stdout
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert steps == list(steps_of(path))
    Path(tmp_path / "mine.py").write_text(
        "from llm_scheduler import TokenBudgetScheduler\n\n\n"
        "class Idle(TokenBudgetScheduler):\n"
        "    def schedule(self):\n"
        "        return None\n"
    )
    other = run(path, "--scheduler", "mine:Idle")
    assert other.returncode == 1
    assert "schedule differs in plan" in other.stdout
    assert "replayed: null" in other.stdout
    missing = run(tmp_path / "missing")
    assert (missing.returncode, missing.stdout) == (2, "")


# Values


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1.5,
        float("inf"),
        "text",
        b"\x00",
        (1, (2, "x")),
        [1, [2]],
        frozenset({3, 1}),
        {"a": (1,)},
    ],
    ids=repr,
)
def test_values_come_back(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)


def test_arrays_come_back():
    for array in (np.array([1, -2], np.int32), np.array([True]), np.zeros((0, 2), np.int32), np.array([0.5])):
        back = decode(json.loads(json.dumps(encode(array))))
        assert back.dtype == array.dtype
        assert back.tolist() == array.tolist()


def test_admitted_tokens_are_part_of_what_is_compared():
    def plan(tokens, payload):
        row = NewRow(0, "a", np.array(tokens, np.int32), 2, payload)
        one = np.ones(1, np.int32)
        blocks = (Ragged.from_rows([[3, 4]]),)
        return plain(StepPlan(7, one, one, one, one == 1, blocks, [row], one, np.empty((0, 2), np.int32)))

    assert plan([1, 2], "payload") == plan([1, 2], None)
    assert plan([1, 2], None) != plan([1, 3], None)
    assert plan([1, 2], None)["new_blocks"] == [[[3, 4], [2]]]
