"""`llm-stack bench`: draws, percentiles, a real server under load, and the tiny model on the CPU."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from llm_stack_server.app import create_app
from llm_stack_server.bench import plots
from llm_stack_server.bench.http_stream import Endpoint, get_json, stream_events
from llm_stack_server.bench.load import Answer, arrival_times, run_load
from llm_stack_server.bench.serving import parse_limits, summarize_answers
from llm_stack_server.bench.summary import percentile, summarize
from llm_stack_server.bench.workloads import Lengths, draw_workload, make_workloads
from llm_stack_server.cli import bench, main
from llm_stack_server.errors import ServerError
from llm_stack_server.settings import ServerSettings

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "eos_token_id": 299,
}
ENGINE = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-bytes", "1048576", "--threads", "1"]
has_matplotlib = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(TINY))
    return str(path)


# Draws and numbers


def test_workloads_are_those_of_the_notebook():
    every = make_workloads()
    assert [(name, len(every[name].prompts)) for name in ("W1", "W2", "W3", "W4", "W5")] == [
        ("W1", 256),
        ("W2", 1),
        ("W3", 32),
        ("W4", 64),
        ("W5", 128),
    ]
    # Drawn by the script that measured the peers.
    assert (every["W1"].num_input_tokens, every["W1"].num_output_tokens) == (136_378, 142_559)


def test_lengths():
    assert Lengths.parse("7") == Lengths(7, 7)
    assert str(Lengths.parse("3:9")) == "3:9"
    workload = draw_workload(50, Lengths(3, 5), Lengths(2, 2), highest_id=40)
    assert {len(prompt) for prompt in workload.prompts} == {3, 4, 5}
    assert set(workload.output_lengths) == {2}
    assert max(max(prompt) for prompt in workload.prompts) == 40
    assert workload.prompts == draw_workload(50, Lengths(3, 5), Lengths(2, 2), highest_id=40).prompts
    for bad in ("0", "5:3"):
        with pytest.raises(ServerError, match="lengths"):
            Lengths.parse(bad)
    with pytest.raises(ServerError, match="requests: must be at least 1"):
        draw_workload(0, Lengths(1, 1), Lengths(1, 1), highest_id=9)


def test_arrivals_are_a_poisson_process():
    times = arrival_times(20_001, 50.0, seed=3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.03)
    # The deviation of exponential gaps is their mean; a share of 1/e is longer.
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)
    assert arrival_times(3, math.inf, seed=0) == [0.0, 0.0, 0.0]
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ServerError, match="rate: must be above 0"):
            arrival_times(3, rate, seed=0)


def test_percentiles_lie_between_neighbours():
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 90) == 9.0
    assert summarize([4.0]) == {"mean": 4.0, "p50": 4.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
    assert summarize([]) == {}


def answer(first: float, gap: float, tokens: int, error: str = "") -> Answer:
    chunks = [first + gap * step for step in range(tokens)]
    return Answer(
        num_prompt_tokens=10,
        num_wanted=tokens,
        num_tokens=tokens,
        chunk_s=chunks,
        ended_s=chunks[-1],
        error=error,
    )


def test_goodput_counts_what_is_within_all_limits():
    answers = [
        answer(0.1, 0.01, 11),
        answer(0.3, 0.01, 11),
        answer(0.1, 0.05, 11),
        answer(0.1, 0.0, 1, "broken"),
    ]
    limits = parse_limits("ttft_ms=200,tpot_ms=20")
    found = summarize_answers(answers, [0.0, 0.5, 1.0, 1.2], limits)
    assert found["duration_s"] == pytest.approx(1.6)
    assert (found["requests"], found["failed"], found["first_failures"]) == (4, 1, ["broken"])
    assert found["good_requests"] == 1
    assert found["goodput_per_s"] == pytest.approx(1 / 1.6)
    assert found["output_tokens_per_s"] == pytest.approx(33 / 1.6)
    assert found["ttft_ms"]["p50"] == pytest.approx(100)
    assert found["ttft_ms"]["max"] == pytest.approx(300)
    assert [found["tpot_ms"]["max"], found["itl_ms"]["max"]] == pytest.approx([50, 50])
    with pytest.raises(ServerError, match="all 1 requests failed, the first: broken"):
        summarize_answers(answers[3:], [0.0], {})
    for bad in ("ttft=3", "ttft_ms=x", "ttft_ms=0"):
        with pytest.raises(ServerError, match="goodput"):
            parse_limits(bad)


# A running server


@pytest.fixture
def server(engine) -> Iterator[str]:
    """The real application around the engine double, on a real socket, in a thread."""
    config = uvicorn.Config(
        create_app(ServerSettings(api_key=("k",)), engine), port=0, lifespan="off", log_level="warning"
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive()
    port = running.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join()


def test_a_server_under_load(server, engine, capsys, tmp_path):
    arguments = [
        "bench",
        "serve",
        "--url",
        server + "/v1",
        "--api-key",
        "k",
        "--rate",
        "200",
        "--requests",
        "20",
    ]
    arguments += ["--input-tokens", "3:9", "--output-tokens", "2:20", "--highest-id", "250"]
    arguments += ["--goodput", "ttft_ms=60000,e2e_ms=60000", "--out", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    row = result["results"][0]
    assert (row["model"], row["requests"], row["failed"], row["good_requests"]) == ("double", 20, 0, 20)
    wanted = draw_workload(20, Lengths(3, 9), Lengths(2, 20), highest_id=250, rounds=1)
    assert sorted(prompt for prompt, _, _ in engine.seen) == sorted(wanted.prompts)
    assert sorted(params.max_tokens for _, params, _ in engine.seen) == sorted(wanted.output_lengths)
    assert all(params.ignore_eos for _, params, _ in engine.seen)
    tokens = row["output_tokens_per_s"] * row["duration_s"]
    assert tokens == pytest.approx(wanted.num_output_tokens)
    assert 0 < row["ttft_ms"]["p50"] <= row["e2e_ms"]["p50"]
    assert result["commit"] is None or len(result["commit"]) >= 7
    assert result["versions"]["torch"]


def test_latency_counts_from_when_a_request_was_due(server, engine):
    """With all answers held back, later requests are sent nevertheless, and the first waits longest."""
    release, arrived = threading.Event(), threading.Semaphore(0)
    original = engine.generate

    async def held(prompt, params, **more):
        arrived.release()
        await asyncio.to_thread(release.wait)
        async for delta in original(prompt, params, **more):
            yield delta

    async def measure() -> list[Answer]:
        workload = draw_workload(5, Lengths(3, 3), Lengths(2, 2), highest_id=200, rounds=1)
        times = [0.0, 0.05, 0.1, 0.15, 0.2]
        endpoint = Endpoint.parse(server, "k")
        load = asyncio.ensure_future(run_load(endpoint, "double", workload, times, temperature=0.0))
        for _ in times:
            await asyncio.to_thread(arrived.acquire)
        release.set()
        return await load

    engine.generate = held
    answers = asyncio.run(measure())
    assert [one.error for one in answers] == [""] * 5
    assert all(0 <= one.sent_s < 0.2 for one in answers)
    assert answers[0].first_token_s - answers[4].first_token_s == pytest.approx(0.2, abs=0.15)


def test_failures_are_told(server, engine, capsys):
    assert main(["bench", "serve", "--url", server, "--requests", "2", "--model", "double"]) == 1
    assert "all 2 requests failed, the first: ServerError: status 401" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9", "--requests", "1"]) == 1
    assert "url: http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
    assert main(["bench", "serve", "--url", "nowhere"]) == 1
    assert "url: must begin with http" in capsys.readouterr().err


async def test_events_and_json(server):
    endpoint = Endpoint.parse(server, "k")
    body = {"model": "double", "prompt": [65, 66], "max_tokens": 3, "stream": True}
    events = [event async for event in stream_events(endpoint, "/v1/completions", body)]
    assert events[-1] == "[DONE]"
    text = "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])
    assert text.encode().startswith(b"Gr")
    assert (await get_json(endpoint, "/v1/models"))["data"][0]["id"] == "double"
    with pytest.raises(ServerError, match="status 404"):
        await get_json(endpoint, "/nothing")


# The tiny model


def test_throughput_of_the_tiny_model(folder, capsys):
    arguments = ["bench", "throughput", folder, *ENGINE, "--requests", "3", "--input-tokens", "4:9"]
    assert main([*arguments, "--output-tokens", "5", "--rounds", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["results"]
    assert (row["requests"], row["output_tokens"], len(row["seconds"])) == (3, 15, 2)
    assert row["output_tokens_per_s"] == pytest.approx(15 / min(row["seconds"]), rel=0.05)
    assert result["options"]["kv_cache_bytes"] == 1048576


def test_latency_of_the_tiny_model(folder, capsys):
    arguments = ["bench", "latency", folder, *ENGINE, "--batch-sizes", "1,3", "--input-tokens", "6"]
    assert main([*arguments, "--output-tokens", "9", "--rounds", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["batch_size"] for row in rows] == [1, 3]
    for row in rows:
        assert 0 < row["first_token_s"]["p50"] < row["last_token_s"]["max"]
    assert main([*arguments, "--output-tokens", "1"]) == 1
    assert "output-tokens: must be at least 2" in capsys.readouterr().err


def test_startup_of_the_tiny_model(folder, capsys):
    arguments = ["bench", "startup", folder, *ENGINE, "--rounds", "1", "--empty-cache"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    (row,) = result["results"]
    assert row["profiled_s"] == pytest.approx(row["wall_s"], abs=0.3)
    leaves = sum(phase["seconds"] for phase in row["phases"] if phase["is_leaf"])
    assert leaves == pytest.approx(row["profiled_s"])
    assert {"imports", "weights", "first token"} <= {phase["name"] for phase in row["phases"]}
    assert printed.err.startswith("seconds  share  phase")
    assert result["best_wall_s"] == row["wall_s"]


def test_a_start_that_fails_is_told(folder, capsys):
    assert main(["bench", "startup", folder, *ENGINE, "--rounds", "1", "--max-model-len", "4096"]) == 1
    assert "max_model_len" in capsys.readouterr().err
    assert main(["bench", "startup", folder, "--warm", "--empty-cache"]) == 1
    assert "does not go with" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--input-tokens", "0"], ["--input-tokens", "x"], ["--rate", "x"]])
def test_wrong_usage_exits_with_2(arguments):
    with pytest.raises(SystemExit) as raised:
        main(["bench", "serve", *arguments])
    assert raised.value.code == 2


def test_plots(tmp_path, capsys):
    if not has_matplotlib:
        assert main(["bench", "serve", "--plot", "x.png"]) == 1
        assert "plot: matplotlib is not installed" in capsys.readouterr().err
        return
    latency = {f"{name}_ms": {"mean": 2.0, "p50": 1.0, "p90": 2.0, "p99": 4.0} for name in ("ttft", "e2e")}
    results = {
        "throughput": [{"title": "t", "input_tokens_per_s": 5.0, "output_tokens_per_s": 7.0}],
        "latency": [{"batch_size": 1, "step_ms": 2.0}],
        "startup": [{"wall_s": 2.0, "phases": [{"name": "a", "seconds": 2.0, "is_leaf": True}]}],
        "serve": [{**latency, "itl_ms": {}, "tpot_ms": {}}],
    }
    for kind, rows in results.items():
        path = tmp_path / f"{kind}.png"
        bench._PLOT[kind](path, {"title": "t", "results": rows})
        assert path.read_bytes().startswith(b"\x89PNG")
    plots.require_matplotlib()


def test_every_kind_explains_itself():
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parsed = parser.parse_args(["startup", "m", "--kernel-cache", str(Path("x"))])
    assert parsed.kernel_cache == "x"
    assert parsed.rounds == 3
