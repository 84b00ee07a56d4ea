"""Step-time models: reading, writing, fitting."""

import json

import numpy as np
import pytest
from llm_scheduler.sim import (
    InvalidStepTime,
    StepLoad,
    StepRecord,
    StepTimeModel,
    TraceError,
    fit_step_time,
    read_step_records,
    write_step_records,
)

MODEL = StepTimeModel(
    per_step_s=0.004,
    per_prefill_token_s=2.5e-5,
    per_decode_row_s=8e-6,
    per_context_token_s=3e-8,
    per_prefill_pair_s=4e-10,
)


def random_records(model, num=400, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    loads = [
        StepLoad(int(p), int(d), int(d * c), int(p * q))
        for p, d, c, q in rng.integers([0, 0, 1, 1], [4096, 257, 4096, 2048], (num, 4))
    ]
    factors = 1 + noise * rng.standard_normal(num)
    return [StepRecord(load, model.seconds(load) * f) for load, f in zip(loads, factors, strict=True)]


def test_a_fit_recovers_the_constants_of_exact_steps():
    fit = fit_step_time(random_records(MODEL))
    for name in MODEL.__dataclass_fields__:
        assert getattr(fit.model, name) == pytest.approx(getattr(MODEL, name), rel=1e-6)
    assert fit.r_squared == pytest.approx(1.0)
    assert fit.max_relative_error < 1e-6
    assert fit.unseen == fit.ambiguous == ()


def test_a_fit_of_noisy_steps_comes_near():
    fit = fit_step_time(random_records(MODEL, num=4000, noise=0.02))
    assert fit.model.per_step_s == pytest.approx(MODEL.per_step_s, rel=0.05)
    assert fit.model.per_prefill_token_s == pytest.approx(MODEL.per_prefill_token_s, rel=0.05)
    assert fit.mean_relative_error == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.1)


def test_no_constant_is_fitted_below_zero():
    # Decode rows that seem to save time: the best constant is 0, not a negative one.
    records = [StepRecord(StepLoad(0, d, 100 * d), 0.01 - 1e-6 * d) for d in range(1, 200)]
    model = fit_step_time(records).model
    assert model.per_decode_row_s == model.per_context_token_s == 0
    assert model.per_step_s == pytest.approx(0.01, rel=0.02)


def test_a_fit_names_what_the_records_do_not_tell():
    records = [StepRecord(StepLoad(0, d, 50 * d), 0.01 + 1e-5 * d) for d in range(1, 100)]
    fit = fit_step_time(records)
    assert fit.unseen == ("per_prefill_token_s", "per_prefill_pair_s")
    assert fit.ambiguous == ("per_decode_row_s", "per_context_token_s")


def test_a_fit_needs_two_steps():
    with pytest.raises(InvalidStepTime, match="records"):
        fit_step_time([StepRecord(StepLoad(0, 1, 1), 0.1)])


def test_records_come_back_from_their_file(tmp_path):
    records = random_records(MODEL, num=20)
    write_step_records(tmp_path / "steps.jsonl", records)
    assert read_step_records(tmp_path / "steps.jsonl") == records


def test_lines_that_are_no_steps_are_passed_over(tmp_path):
    path = tmp_path / "steps.jsonl"
    step = {"num_prefill_tokens": 1, "num_decode_rows": 2, "context_tokens": 3, "seconds": 0.5}
    lines = [{"kind": "plan"}, {"kind": "step", "more": 1, **step}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_step_records(path) == [StepRecord(StepLoad(1, 2, 3, 0), 0.5)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": "1"}, "seconds"),
        ({"num_prefill_tokens": -1}, "num_prefill_tokens"),
        ({"num_decode_rows": None}, "num_decode_rows"),
        ({"context_tokens": 1.5}, "context_tokens"),
        ({"prefill_pairs": True}, "prefill_pairs"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, change, field):
    good = {"num_prefill_tokens": 1, "num_decode_rows": 2, "context_tokens": 3, "seconds": 0.5}
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **change}) + "\n")
    with pytest.raises(TraceError) as caught:
        read_step_records(path)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_model_comes_back_from_its_file_and_its_short_form(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(MODEL.to_json())
    assert StepTimeModel.from_file(path) == MODEL
    assert StepTimeModel.parse("per_step_s=0.004, per_prefill_token_s=2e-5") == StepTimeModel(
        per_step_s=0.004, per_prefill_token_s=2e-5
    )


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("per_step_s=x", "per_step_s"),
        ("per_step_s=-1", "per_step_s"),
        ("per_step_s=nan", "per_step_s"),
        ("per_step_s=1,per_step_s=2", "per_step_s"),
        ("per_decode_row_s=1", "per_step_s"),
        ("per_step_s=0", "per_step_s"),
        ("per_cow_s=1", "per_cow_s"),
    ],
)
def test_a_malformed_model_is_named(text, field):
    with pytest.raises(InvalidStepTime) as caught:
        StepTimeModel.parse(text)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"per_step_s": 1, "per_cow_s": 2}'])
def test_a_file_that_is_no_model_is_refused(tmp_path, text):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        StepTimeModel.from_file(path)
    with pytest.raises(TraceError):
        StepTimeModel.from_file(tmp_path / "absent.json")
