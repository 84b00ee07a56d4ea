"""The simulated clock against closed forms: single requests, queues, the overlapped loop."""

from types import SimpleNamespace

import numpy as np
import pytest
from llm_scheduler import SchedulerConfig
from llm_scheduler.sim import (
    EngineSetup,
    Fixed,
    Process,
    RequestSpec,
    StepLoad,
    StepTimeModel,
    SyntheticSpec,
    Workload,
    simulate,
    synthesize,
)

MODEL = StepTimeModel(
    per_step_s=0.005,
    per_prefill_token_s=2e-5,
    per_decode_row_s=1e-4,
    per_context_token_s=1e-7,
    per_prefill_pair_s=1e-9,
)
CONSTANT = StepTimeModel(per_step_s=1.0)


def setup(depth=1, **config):
    fields = {"max_model_len": 4096, **config}
    return EngineSetup(config=SchedulerConfig(**fields), num_blocks=1024, depth=depth)


def prefill_seconds(tokens, before=0):
    pairs = sum(range(before + 1, before + tokens + 1))
    return 0.005 + 2e-5 * tokens + 1e-9 * pairs


def decode_seconds(contexts):
    return 0.005 + 1e-4 * len(contexts) + 1e-7 * sum(contexts)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_single_request_takes_what_the_model_says(depth):
    workload = Workload.from_specs([RequestSpec(prompt_tokens=300, output_tokens=5, arrival_s=3.0)])
    recording = simulate(workload, setup(depth), MODEL).recording.requests
    first = 3.0 + prefill_seconds(300)
    pauses = [decode_seconds([300 + k]) for k in range(1, 5)]
    assert recording.first_token_s[0] == pytest.approx(first, rel=1e-12)
    assert recording.itl_s() == pytest.approx(pauses, rel=1e-9)
    assert recording.last_token_s[0] == recording.ended_s[0] == pytest.approx(first + sum(pauses), rel=1e-12)
    assert recording.max_itl_s[0] == pytest.approx(max(pauses))


def test_a_prompt_beyond_the_budget_runs_in_chunks():
    workload = Workload.from_specs([RequestSpec(prompt_tokens=250, output_tokens=1)])
    simulation = simulate(workload, setup(max_num_batched_tokens=100), MODEL)
    expected = prefill_seconds(100) + prefill_seconds(100, 100) + prefill_seconds(50, 200)
    assert simulation.report.ttft_s.p50 == pytest.approx(expected, rel=1e-12)
    assert simulation.recording.steps.num_tokens.tolist() == [100, 100, 50]


def test_rows_of_a_step_end_together():
    specs = [RequestSpec(prompt_tokens=10, output_tokens=3), RequestSpec(prompt_tokens=20, output_tokens=3)]
    recording = simulate(Workload.from_specs(specs), setup(), MODEL).recording
    first = 0.005 + 2e-5 * 30 + 1e-9 * (55 + 210)
    steps = [first, decode_seconds([11, 21]), decode_seconds([12, 22])]
    assert recording.steps.seconds.tolist() == pytest.approx(steps, rel=1e-12)
    assert recording.requests.ended_s.tolist() == pytest.approx([sum(steps)] * 2)


@pytest.mark.parametrize(("depth", "ttft_s"), [(1, 0.5 + 1), (2, 0.5 + 1 + 1)])
def test_an_overlapped_loop_sees_an_arrival_a_step_later(depth, ttft_s):
    specs = [
        RequestSpec(prompt_tokens=8, output_tokens=9),
        RequestSpec(prompt_tokens=8, output_tokens=1, arrival_s=2.5),
    ]
    recording = simulate(Workload.from_specs(specs), setup(depth), CONSTANT).recording.requests
    assert recording.first_token_s[1] - recording.arrived_s[1] == pytest.approx(ttft_s)


@pytest.mark.parametrize(("depth", "seconds"), [(1, 1.25), (2, 1.0)])
def test_host_time_is_hidden_in_the_overlapped_loop(depth, seconds):
    workload = Workload.from_specs([RequestSpec(prompt_tokens=8, output_tokens=4)])
    engine = EngineSetup(config=SchedulerConfig(max_model_len=64), num_blocks=64, depth=depth, host_s=0.25)
    assert set(simulate(workload, engine, CONSTANT).recording.steps.seconds) == {seconds}


@pytest.mark.parametrize(("depth", "wasted"), [(1, 0), (2, 1)])
def test_a_stop_token_costs_the_overlapped_loop_one_token(depth, wasted):
    spec = RequestSpec(prompt_tokens=8, output_tokens=4, max_tokens=100)
    simulation = simulate(Workload.from_specs([spec]), setup(depth), CONSTANT)
    assert simulation.recording.requests.num_outputs.tolist() == [4]
    assert simulation.report.e2e_s.max == 4.0
    assert simulation.report.steps.wasted_tokens == wasted
    assert simulation.report.steps.steps == 4 + wasted


def test_a_queue_with_one_server_follows_lindleys_recursion():
    spec = SyntheticSpec(num_requests=3000, rate=0.6, prompt_tokens=Fixed(4), output_tokens=Fixed(1))
    workload = synthesize(spec, seed=5)
    engine = setup(max_num_seqs=1, max_waiting_requests=10**6)
    recording = simulate(workload, engine, CONSTANT).recording.requests
    waits = recording.admitted_s - recording.arrived_s
    expected, wait = [], 0.0
    for gap in np.diff(workload.arrival_s, append=0.0).tolist():
        expected.append(wait)
        wait = max(0.0, wait + 1.0 - gap)
    assert waits == pytest.approx(expected, abs=1e-6)
    # M/D/1: the mean wait is load x service / (2 (1 - load)).
    assert waits.mean() == pytest.approx(0.6 / (2 * 0.4), rel=0.15)


def test_a_closed_loop_keeps_its_users_busy():
    spec = SyntheticSpec(
        num_requests=60, process=Process.CLOSED, users=3, prompt_tokens=Fixed(8), output_tokens=Fixed(5)
    )
    simulation = simulate(synthesize(spec), setup(), CONSTANT)
    # Three users in step: a request takes five steps, and 20 rounds of it fill the time.
    assert simulation.report.throughput.seconds == pytest.approx(100.0)
    assert set(simulation.recording.steps.num_rows) == {3}


def test_a_user_thinks_after_the_answer():
    specs = [
        RequestSpec(prompt_tokens=8, output_tokens=2),
        RequestSpec(prompt_tokens=8, output_tokens=2, arrival_s=7.0, after=0),
    ]
    recording = simulate(Workload.from_specs(specs), setup(), CONSTANT).recording.requests
    assert recording.arrived_s.tolist() == [0.0, 9.0]
    assert recording.ended_s.tolist() == [2.0, 11.0]


def test_the_load_of_a_plan_counts_its_work():
    tokens = np.array([1, 1, 30, 5], np.int32)
    before = np.array([99, 9, 0, 20], np.int32)
    plan = SimpleNamespace(num_tokens=tokens, num_computed=before)  # all that is read of a plan
    pairs = sum(range(1, 31)) + sum(range(21, 26))
    assert StepLoad.of_plan(plan) == StepLoad(35, 2, 110, pairs)
