"""Batch files: every line gets the answer that HTTP gives, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import tracemalloc
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_engine import LLM
from llm_engine.errors import EngineBusy, EngineDead
from llm_stack_server.batch.files import Claim, InputFile, Ledger, OutputFile
from llm_stack_server.batch.lines import BadLine, BatchRequest, Reply, read_line
from llm_stack_server.batch.runner import BatchRunner, Counts
from llm_stack_server.cli import main, run_batch
from server_pooling_models import write_embedder

CHAT = {"model": "double", "messages": [{"role": "user", "content": "hi"}]}


def line(custom_id, body=None, url="/v1/chat/completions", **fields):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body or CHAT, **fields}


@pytest.fixture
def batch(engine, tmp_path, monkeypatch):
    """Runs a batch over the double; the exit code and the lines of the output."""

    @asynccontextmanager
    async def open_double(options):
        yield engine

    monkeypatch.setattr(run_batch, "_open_engine", open_double)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def run(lines, *flags):
        texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
        source.write_text("".join(text + "\n" for text in texts))
        code = main(["run-batch", "double", "-i", str(source), "-o", str(target), *flags])
        return code, [json.loads(text) for text in target.read_text().splitlines()]

    run.target = target
    return run


def stable(body):
    return {name: value for name, value in body.items() if name not in ("id", "created", "created_at")}


async def test_an_answer_is_that_of_http(batch, client):
    bodies = [
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/v1/completions", {"model": "double", "prompt": ["a", "b"], "max_tokens": 3}),
        ("/v1/chat/completions", CHAT | {"temperature": "hot"}),
        ("/v1/chat/completions", CHAT | {"model": "other"}),
        ("/v1/completions", {"model": "double", "prompt": "x" * 300}),
    ]
    lines = [line(f"r{index}", body, url) for index, (url, body) in enumerate(bodies)]
    code, found = await asyncio.to_thread(batch, lines, "--keep-order")
    assert code == 1
    assert [answer["custom_id"] for answer in found] == ["r0", "r1", "r2", "r3", "r4"]
    for (url, body), answer in zip(bodies, found, strict=True):
        over_http = await client.post(url, json=body)
        assert answer["response"]["status_code"] == over_http.status_code
        assert stable(answer["response"]["body"]) == stable(over_http.json())
        assert answer["response"]["request_id"]
        assert answer["error"] is None
    assert [answer["response"]["status_code"] for answer in found] == [200, 200, 400, 404, 400]
    assert found[2]["response"]["body"]["error"]["param"] == "temperature"


def test_responses_run_and_are_not_kept(batch):
    body = {"model": "double", "input": "hi"}
    code, found = batch(
        [line("a", body, "/v1/responses"), line("b", body | {"background": True}, "/v1/responses")],
        "--keep-order",
    )
    assert code == 1
    assert found[0]["response"]["body"]["status"] == "completed"
    assert found[1]["response"]["body"]["error"]["param"] == "background"


def test_a_bad_line_is_an_error_and_the_others_run(batch, capsys):
    lines = [
        "{",
        "[1]",
        line(None),
        line("method", method="GET"),
        line("url", url="/v1/models"),
        line("body") | {"body": []},
        line("stream", CHAT | {"stream": True}),
        line("extra", more=1),
        "",
        line("good"),
        line("good"),
    ]
    code, found = batch(lines, "--keep-order")
    assert code == 1
    errors = [answer["error"] for answer in found if answer["error"] is not None]
    assert [error["param"] for error in errors] == [
        None,
        None,
        "custom_id",
        "method",
        "url",
        "body",
        "body.stream",
        "more",
        "custom_id",
    ]
    assert [error["line"] for error in errors] == [1, 2, 3, 4, 5, 6, 7, 8, 11]
    assert errors[-1]["code"] == "duplicate_custom_id"
    assert found[-1]["custom_id"] is None
    assert [answer["custom_id"] for answer in found if answer["response"] is not None] == ["good"]
    assert "1 done, 9 failed, 0 skipped" in capsys.readouterr().err


def test_all_lines_ran(batch, engine):
    code, found = batch([line(f"r{index}") for index in range(40)], "--in-flight", "8")
    assert code == 0
    assert {answer["custom_id"] for answer in found} == {f"r{index}" for index in range(40)}
    assert engine.live == 0


def test_resume_runs_what_is_left(batch, engine, capsys):
    lines = ["{", *(line(f"r{index}") for index in range(6))]
    code, whole = batch(lines, "--keep-order")
    assert code == 1
    text = batch.target.read_bytes().splitlines(keepends=True)
    batch.target.write_bytes(b"".join(text[:4]) + text[4][:-7])  # killed while it wrote the fifth
    engine.seen.clear()
    code, found = batch(lines, "--resume", "--keep-order")
    assert code == 1  # the bad line is still bad
    assert len(engine.seen) == 3
    assert [answer["custom_id"] for answer in found] == [answer["custom_id"] for answer in whole]
    assert "3 done, 0 failed, 4 skipped; of an earlier run 1 failed" in capsys.readouterr().err


def test_resume_of_a_whole_run_does_nothing(batch, engine):
    lines = [line("a"), line("b")]
    assert batch(lines)[0] == 0
    before = batch.target.read_bytes()
    engine.seen.clear()
    assert batch(lines, "--resume")[0] == 0
    assert batch.target.read_bytes() == before
    assert engine.seen == []


def test_files_are_not_lost(batch, capsys):
    batch([line("a")])
    before = batch.target.read_bytes()
    assert batch([line("b")])[0] == 1
    assert "--resume or --overwrite" in capsys.readouterr().err
    assert batch.target.read_bytes() == before
    assert [answer["custom_id"] for answer in batch([line("b")], "--overwrite")[1]] == ["b"]
    batch.target.write_text('{"some": "thing"}\n')
    assert main(["run-batch", "double", "-i", str(batch.target), "-o", str(batch.target)]) == 1
    assert "is the input file" in capsys.readouterr().err
    assert batch([line("b")], "--resume")[0] == 1
    assert "line 1 is no answer" in capsys.readouterr().err
    assert batch.target.read_text() == '{"some": "thing"}\n'


def test_a_missing_input_is_one_line(tmp_path, capsys):
    assert main(["run-batch", "m", "-i", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("llm-stack: error: input: ")
    assert not (tmp_path / "out").exists()


def test_a_dead_engine_ends_the_run_and_writes_no_answer_for_it(batch, engine, capsys):
    engine.error = EngineDead("killed")
    code, found = batch([line(f"r{index}") for index in range(20)])
    assert (code, found) == (1, [])
    assert "--resume runs what is left" in capsys.readouterr().err
    assert engine.live == 0


def test_ctrl_c_keeps_what_is_answered(batch, engine, capsys):
    lines = [line(f"r{number}") for number in range(6)]
    generate = engine.generate

    def until_interrupted(*arguments, **options):
        if len(engine.seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return generate(*arguments, **options)

    engine.generate = until_interrupted
    code, found = batch(lines, "--in-flight", "1")
    assert code == 130
    assert [answer["custom_id"] for answer in found] == ["r0", "r1", "r2"]
    assert "stopped: 3 lines are answered, --resume runs the others" in capsys.readouterr().err
    engine.generate = generate
    code, found = batch(lines, "--resume")
    assert (code, len(found), engine.live) == (0, 6, 0)


def test_a_long_line_is_refused_and_the_next_one_runs(batch):
    long = line("long", CHAT | {"user": "x" * 200_000})
    code, found = batch([long, line("next")], "--max-body-bytes", "2048", "--keep-order")
    assert code == 1
    assert found[0]["error"]["code"] == "line_too_large"
    assert found[1]["response"]["status_code"] == 200


def test_the_in_flight_limit_is_checked(batch, capsys):
    with pytest.raises(FileNotFoundError):
        batch([line("a")], "--in-flight", "0")
    assert "in_flight: must be at least 1" in capsys.readouterr().err


# The runner alone


class Route:
    """A route that takes a while; refuses with 429 past ``room``."""

    def __init__(self, room=10**9, never=()):
        self.room = room
        self.never = never
        self.running = self.highest = self.refused = 0

    async def __call__(self, url, body):
        name = json.loads(body)["name"]
        if self.running >= self.room or name in self.never:
            await asyncio.sleep(0)
            self.refused += 1
            return Reply(429, "x", {"error": {"code": "engine_busy"}})
        self.running += 1
        self.highest = max(self.highest, self.running)
        for _ in range(random.Random(name).randrange(100)):
            await asyncio.sleep(0)
        self.running -= 1
        return Reply(200, "x", {"name": name})


async def run_lines(route, count, **options):
    written = []
    lines = (BatchRequest(n, f"r{n}", "/u", json.dumps({"name": n}).encode()) for n in range(count))
    with Ledger() as ledger:
        await BatchRunner(route, written.append, ledger, Counts(), **options).run(lines)
    return [json.loads(text) for text in written]


@pytest.mark.parametrize("keep_order", [False, True])
async def test_so_many_at_a_time(keep_order):
    route = Route()
    found = await run_lines(route, 300, in_flight=16, keep_order=keep_order)
    assert route.highest == 16
    order = [int(answer["custom_id"][1:]) for answer in found]
    assert sorted(order) == list(range(300))
    assert (order == sorted(order)) == keep_order


async def test_a_full_queue_is_waited_for():
    route = Route(room=3)
    found = await asyncio.wait_for(run_lines(route, 100, in_flight=12, keep_order=False), 30)
    assert route.refused
    assert all(answer["response"]["status_code"] == 200 for answer in found)


async def test_what_never_fits_is_told():
    found = await asyncio.wait_for(
        run_lines(Route(never={3, 4, 99}), 100, in_flight=12, keep_order=False), 30
    )
    refused = {answer["custom_id"] for answer in found if answer["response"]["status_code"] == 429}
    assert refused == {"r3", "r4", "r99"}
    assert len(found) == 100


async def test_an_engine_that_is_busy_is_asked_again(engine, make_client):
    engine.error = EngineBusy(1.0, "the request queue is full")
    client = make_client()
    answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 429  # what the runner takes for a full queue


# Files


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_named_fault(raw):
    found = read_line(1, raw)
    assert isinstance(found, BadLine)
    assert found.message


@given(
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)),
)
def test_a_good_line_keeps_name_and_body(name, body):
    found = read_line(3, json.dumps(line(name) | {"body": body}).encode())
    assert isinstance(found, BatchRequest)
    assert (found.number, found.custom_id, json.loads(found.body)) == (3, name, body)


def test_a_body_is_handed_on_byte_by_byte():
    body = b'{ "x": 1e400, "y":1.0, "y":123456789012345678901234567890, "z": "\\u00e9 \xc3\xa9" }'
    found = read_line(1, json.dumps(line("a") | {"body": {}}).encode().replace(b"{}", body))
    assert isinstance(found, BatchRequest)
    assert found.body == body


def test_a_ledger_tells_old_from_twice():
    with Ledger() as ledger:
        ledger.add_answer("a", "batch_req_1")
        ledger.add_answer(None, "batch_req_2")
        assert ledger.claim("a", 1) is Claim.DONE
        assert ledger.claim("a", 5) is Claim.DUPLICATE
        assert ledger.claim("b", 6) is Claim.NEW
        assert ledger.claim("b", 7) is Claim.DUPLICATE
        assert ledger.is_told(2)
        assert not ledger.is_told(3)


def test_memory_is_flat(tmp_path):
    """No line is kept: 10,000 of them, 4 MB of output, take less than a tenth of that."""
    source, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for number in range(10_000):
            file.write(json.dumps(line(f"request-{number}")) + "\n")

    async def post(url, body):
        await asyncio.sleep(0)
        return Reply(200, "x", {"text": "y" * 300})

    async def run():
        target = OutputFile.create(answers, overwrite=False)
        reader = InputFile(source, 100_000)
        with Ledger() as ledger:
            runner = BatchRunner(post, target.write, ledger, Counts(), in_flight=64, keep_order=True)
            await runner.run(reader.lines())
        reader.close()
        target.close()

    tracemalloc.start()
    asyncio.run(run())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(answers.read_bytes().splitlines()) == 10_000
    assert answers.stat().st_size > 4_000_000
    assert peak < 800_000


# A real core


def test_vectors_are_those_of_the_engine(tmp_path):
    write_embedder(tmp_path)
    texts = ["the cat sat on the mat", "a dog eats", "cat", "dog"]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [{"model": "vectors", "input": text} for text in texts]
    bodies.append({"model": "vectors", "input": texts, "encoding_format": "hex"})
    lines = [line(f"r{index}", body, "/v1/embeddings") for index, body in enumerate(bodies)]
    lines.append(line("chat", CHAT | {"model": "vectors"}))
    source.write_text("".join(json.dumps(each) + "\n" for each in lines))
    flags = ["--served-model-name", "vectors", "--device", "cpu", "--dtype", "float32", "--threads", "1"]
    command = ["run-batch", str(tmp_path), "-i", str(source), "-o", str(target), "--keep-order"]
    assert main([*command, *flags, "--no-progress"]) == 1
    replies = [json.loads(text)["response"] for text in target.read_text().splitlines()]
    assert [reply["status_code"] for reply in replies] == [200, 200, 200, 200, 400, 400]
    assert replies[4]["body"]["error"]["param"] == "encoding_format"
    assert replies[5]["body"]["error"]["param"] == "model"
    with LLM(str(tmp_path), device="cpu", dtype="float32", threads=1, progress=False) as llm:
        expected = llm.embed(texts)
    for reply, output in zip(replies, expected, strict=False):
        np.testing.assert_allclose(reply["body"]["data"][0]["embedding"], output.embedding, atol=1e-5)
