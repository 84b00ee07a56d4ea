"""Every plan of a live engine is recorded, and a fresh scheduler reaches the same plans from the record."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from llm_engine import LLM, AsyncLLM, EngineOptions, InvalidOption, SamplingParams, StartupError
from llm_scheduler.recording import replay, steps_of

SMALL = {
    "device": "cpu",
    "dtype": "float32",
    "load_format": "dummy",
    "max_model_len": 128,
    "max_num_batched_tokens": 64,
    "kv_cache_bytes": 8 << 20,  # ten blocks: fewer than the requests below need together
    "threads": 1,
    "progress": False,
}
PROMPTS = [
    "The capital of France is",
    "def add(a, b):",
    "Once upon a time, in a village by the sea,",
    "Water",
]


def calls(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()][1:]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_an_offline_run_replays_to_equal_plans(tmp_path, overlap):
    path = tmp_path / "run.jsonl"
    params = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True)
    with LLM("smollm2", **SMALL, overlap=overlap, record_plans=str(path)) as llm:
        llm.generate([*PROMPTS, PROMPTS[2]], params, progress=False)
        stats = llm.stats()
    assert stats.preemptions > 0
    report = replay(path)
    assert report.equal, str(report)
    assert (report.notes, report.is_truncated) == ((), False)
    steps = list(steps_of(path))
    assert len(steps) == report.num_plans == stats.steps
    assert (
        sum(step["num_prefill_tokens"] + step["num_decode_rows"] for step in steps) == stats.scheduled_tokens
    )


async def test_a_server_like_run_with_aborts_replays_to_equal_plans(tmp_path):
    path = tmp_path / "run.jsonl.gz"
    options = EngineOptions(model="smollm2", **SMALL, overlap=True, record_plans=str(path))
    engine = await AsyncLLM.start(options)

    async def stream(index):
        params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True, seed=index)
        async for delta in engine.generate(PROMPTS[index % 4], params):
            if index % 3 == 0 and delta.num_output_tokens > 4:
                return  # closing the stream aborts the request

    try:
        await asyncio.gather(*map(stream, range(9)))
    finally:
        await engine.shutdown()
    kinds = [entry["call"] for entry in calls(path)]
    assert kinds.count("add") == 9
    assert any(entry["call"] == "abort" and entry["live"] for entry in calls(path))
    report = replay(path)
    assert report.equal, str(report)
    assert report.num_plans == sum(kind in ("update", "fail") for kind in kinds)


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path):
    with pytest.raises(StartupError, match="No such file") as caught:
        LLM("smollm2", **SMALL, record_plans=str(tmp_path / "nowhere" / "run.jsonl"))
    assert caught.value.reason == "FileNotFoundError"


def test_the_option_is_checked():
    for value in ("", 3):
        with pytest.raises(InvalidOption) as caught:
            EngineOptions(model="smollm2", record_plans=value)
        assert caught.value.field == "record_plans"
