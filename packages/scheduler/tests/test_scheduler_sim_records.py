"""Records of a scheduler as workloads and as steps to fit: what was recorded can be simulated again."""

import dataclasses
import json

import pytest
from llm_scheduler import SchedulerConfig
from llm_scheduler.recording import RecordingScheduler
from llm_scheduler.sim import (
    EngineSetup,
    RequestSpec,
    StepTimeModel,
    SyntheticSpec,
    TenantSpec,
    TraceError,
    TraceFormat,
    Uniform,
    Workload,
    fit_step_time,
    read_trace,
    simulate,
    step_records_of,
    synthesize,
)
from llm_scheduler.sim.cli import main

MODEL = StepTimeModel(
    per_step_s=0.004,
    per_prefill_token_s=2e-5,
    per_decode_row_s=1e-4,
    per_context_token_s=1e-6,
    per_prefill_pair_s=1e-8,
)
SPEC = SyntheticSpec(
    num_requests=60,
    rate=40.0,
    prompt_tokens=Uniform(1, 60),
    output_tokens=Uniform(1, 30),
    prefix_groups=2,
    prefix_tokens=Uniform(8, 40),
    tenants=(TenantSpec(name="a"), TenantSpec(name="b", priority=-2)),
    deadline_s=50.0,
)


def record(path, workload, depth):
    """Simulate an engine whose scheduler is recorded, as a live one would be."""

    class Recorded(RecordingScheduler):
        def __init__(self, config, cache, *, clock):
            super().__init__(path, "default", config, cache, clock=clock)

    config = SchedulerConfig(max_model_len=512, max_num_seqs=16, max_num_batched_tokens=64)
    setup = EngineSetup(config=config, num_blocks=200, depth=depth, scheduler=Recorded)
    return setup, simulate(workload, setup, MODEL)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_tokens", [None, 40])
def test_a_recorded_run_can_be_simulated_again(tmp_path, name, depth, max_tokens):
    workload = synthesize(dataclasses.replace(SPEC, max_tokens=max_tokens), seed=2)
    setup, original = record(tmp_path / name, workload, depth)
    again = read_trace(tmp_path / name)
    assert len(again) == 60
    assert again.output_tokens.tolist() == workload.output_tokens.tolist()
    for index in (0, 7, 59):
        assert again.prompt(index).tolist() == workload.prompt(index).tolist()
        assert again.spec(index).tenant == workload.spec(index).tenant
        assert again.spec(index).priority == workload.spec(index).priority
    # Requests were added at the end of a step and arrive there now, but for rounding: much the same follows.
    replayed = simulate(again, dataclasses.replace(setup, scheduler="default"), MODEL).report
    assert replayed.requests.finished == 60
    assert replayed.steps.steps == pytest.approx(original.report.steps.steps, rel=0.05)
    assert replayed.cache.hit_rate == pytest.approx(original.report.cache.hit_rate, rel=0.05)
    assert replayed.e2e_s.mean == pytest.approx(original.report.e2e_s.mean, rel=0.1)


def test_the_step_times_of_a_recorded_run_are_fitted(tmp_path, capsys):
    path = tmp_path / "run.jsonl.gz"
    record(path, synthesize(SPEC, seed=3), depth=1)
    fit = fit_step_time(step_records_of(path))
    for name in MODEL.__dataclass_fields__:
        assert getattr(fit.model, name) == pytest.approx(getattr(MODEL, name), rel=1e-4)
    assert main(["fit", str(path)]) == 0
    assert "per_step_s" in capsys.readouterr().out


def test_salts_keep_requests_apart(tmp_path):
    spec = RequestSpec(prompt_tokens=100, output_tokens=2, shared=(("system", 80),))
    specs = [
        dataclasses.replace(spec, arrival_s=float(t), salt=salt) for t, salt in enumerate([None, "x", "x"])
    ]
    _, simulation = record(tmp_path / "run.jsonl", Workload.from_specs(specs), depth=1)
    assert simulation.recording.requests.cached_tokens.tolist() == [0, 0, 80]
    again = read_trace(tmp_path / "run.jsonl")
    salts = [again.spec(index).salt for index in range(3)]
    assert salts[0] is None
    assert salts[1] == salts[2] is not None


def test_a_damaged_record_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path, synthesize(SPEC, seed=3), depth=2)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], json.dumps({"call": "update", "step": 9, "result": {}}), ""]))
    with pytest.raises(TraceError):
        read_trace(path)
    path.write_text(lines[0] + "\n")
    with pytest.raises(TraceError, match="no step"):
        step_records_of(path)
    path.write_text('{"record": "of something else"}\n')
    with pytest.raises(TraceError, match="header"):
        read_trace(path, TraceFormat.RECORD)
