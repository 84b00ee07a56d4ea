"""One line a request at its end: what it tells of each outcome, and what never stands in it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time

import grpc
import pytest
from llm_engine.errors import RequestFailed
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.observing.access_log import AccessLog, fields_of, json_line, text_line
from llm_stack_server.observing.record import RequestRecord
from llm_stack_server.settings import ServerSettings
from server_access_log import logged
from server_grpc_client import serving

STYLES = pytest.mark.parametrize("style", ["json", "text"])
MARK = "pineapple-7731"
KEY = "sk-secret-4242"
CHAT = {"messages": [{"role": "user", "content": MARK}]}
NAMES = [
    *(
        "time",
        "request_id",
        "method",
        "route",
        "status",
        "outcome",
        "error",
        "duration_s",
        "queue_s",
        "ttft_s",
    ),
    *("prompt_tokens", "cached_tokens", "output_tokens", "finish_reasons", "stream", "bytes_sent"),
    *("key", "model", "trace_id", "span_id"),
]


def short(record):
    """Route, status, outcome and error of a line; "None" where text leaves one out."""
    return [str(record.get(name)) for name in ("route", "status", "outcome", "error")]


async def leave_midway(app, body, seen_first):
    """A client that closes its connection once `seen_first` is set."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if sent:
            return sent.pop()
        await seen_first.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.body" and message.get("body"):
            seen_first.set()

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await app(scope, receive, send)


@STYLES
async def test_a_whole_answer_and_a_stream(make_client, style):
    client = make_client(access_log=style, api_key=(f"bob {KEY}",))
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine"}
    with logged(client.app) as lines:
        whole = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
        stream = await client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers)
        await client.get("/v1/models?q=hidden", headers=headers)
    first, second, models = lines.records(style)
    if style == "json":
        assert list(first) == list(second) == list(models) == NAMES
        usage = whole.json()["usage"]
        counted = [first[name] for name in ("prompt_tokens", "output_tokens", "cached_tokens")]
        assert counted == [usage["prompt_tokens"], usage["completion_tokens"], 2]
        assert (first["key"], first["model"], first["finish_reasons"]) == ("bob", "double", ["stop"])
        assert (first["stream"], second["stream"]) == (False, True)
        assert 0 <= first["queue_s"] <= first["ttft_s"] <= first["duration_s"] < 10
        assert (models["queue_s"], models["model"], models["finish_reasons"]) == (None, None, [])
    assert first["request_id"] == "mine"
    assert int(first["bytes_sent"]) == len(whole.content)
    assert int(second["bytes_sent"]) == len(stream.content)
    assert short(first) == short(second) == ["/v1/chat/completions", "200", "finished", "None"]
    assert short(models) == ["/v1/models", "200", "finished", "None"]
    assert "hidden" not in lines.raw


@STYLES
async def test_refusals(make_client, engine, style):
    client = make_client(access_log=style, api_key=(KEY,), requests_per_minute=1)
    headers = {"authorization": f"Bearer {KEY}"}
    path = "/v1/chat/completions"
    with logged(client.app) as lines:
        await client.post(path, json=CHAT)
        await client.get("/nowhere/else", headers=headers)
        await client.post(path, json={"messages": []}, headers=headers)
        await client.post(path, json=CHAT, headers=headers)
        await client.request("BREW", "/v1/models", headers=headers)
    found = lines.records(style)
    assert [short(record) for record in found] == [
        [path, "401", "error", "invalid_api_key"],
        ["unmatched", "404", "error", "not_found"],
        [path, "400", "error", "invalid_value"],
        [path, "429", "error", "request_rate_exceeded"],
        ["/v1/models", "405", "error", "method_not_allowed"],
    ]
    assert [record.get("key") for record in found] == [None, *["key1"] * 4]
    assert found[4]["method"] == "other"


@STYLES
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline(make_client, engine, style, stream):
    client = make_client(access_log=style)
    engine.gate = asyncio.Event()
    with logged(client.app) as lines:
        body = CHAT | {"stream": stream}
        answer = await client.post("/v1/chat/completions", json=body, headers={"x-timeout-s": "0.05"})
    assert answer.status_code == 504
    [record] = lines.records(style)
    assert short(record) == ["/v1/chat/completions", "504", "deadline", "deadline_exceeded"]
    assert "ttft_s" not in record or record["ttft_s"] is None


@STYLES
async def test_an_error_ends_a_stream(make_client, engine, style):
    client = make_client(access_log=style)
    engine.error, engine.error_after = RequestFailed("the device is lost", "r"), 3
    with logged(client.app) as lines:
        await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    [record] = lines.records(style)
    assert short(record) == ["/v1/chat/completions", "200", "error", "request_failed"]
    assert int(record["output_tokens"]) == 3


@STYLES
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves(make_client, engine, style, stream):
    client = make_client(access_log=style)
    left = asyncio.Event()
    if stream:
        engine.script = "x" * 100_000
        engine.max_model_len = 200_000
    else:
        engine.gate = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, left.set)
    with logged(client.app) as lines:
        await leave_midway(client.app, CHAT | {"stream": stream}, left)
    [record] = lines.records(style)
    status = "200" if stream else "499"
    assert short(record) == ["/v1/chat/completions", status, "aborted", "None"]
    assert (int(record["bytes_sent"]) > 0) == stream


async def test_unforeseen_errors(make_client, engine):
    client = make_client(access_log="json")
    engine.error = ZeroDivisionError(MARK)
    with logged(client.app) as lines:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 500
    [record] = lines.records("json")
    assert short(record) == ["/v1/chat/completions", "500", "error", "internal_error"]


async def test_calls_over_grpc(engine):
    async with serving(engine, access_log="json", api_key=(KEY,)) as client:
        metadata = (("authorization", f"Bearer {KEY}"), ("x-request-id", "mine"))
        with logged(client.app) as lines:
            answer = await client.generate(prompt=MARK, metadata=metadata)
            async for _ in client.stream(prompt=MARK, metadata=metadata):
                pass
            for wrong in ({"prompt": MARK}, {"prompt": MARK, "temperature": -1.0, "metadata": metadata}):
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.generate(**wrong)
            engine.gate = asyncio.Event()
            with pytest.raises(grpc.aio.AioRpcError):
                await client.generate(prompt=MARK, metadata=metadata, timeout=0.2)
            await asyncio.sleep(0.2)
    records = lines.records("json")
    assert [short(record) for record in records[:4]] == [
        ["grpc:Generate", "OK", "finished", "None"],
        ["grpc:GenerateStream", "OK", "finished", "None"],
        ["grpc:Generate", "UNAUTHENTICATED", "error", "invalid_api_key"],
        ["grpc:Generate", "INVALID_ARGUMENT", "error", "invalid_value"],
    ]
    # Client and server see the deadline at the same time: who is first decides.
    assert records[4]["outcome"] in ("deadline", "aborted")
    first = records[0]
    assert (first["method"], first["request_id"], first["key"]) == ("gRPC", "mine", "key1")
    assert first["bytes_sent"] == answer.ByteSize()
    assert (first["output_tokens"], first["finish_reasons"]) == (answer.usage.completion_tokens, ["length"])
    assert (records[0]["stream"], records[1]["stream"]) == (False, True)
    assert MARK not in lines.raw
    assert KEY not in lines.raw


# What never stands in it


@STYLES
async def test_no_line_is_forged(make_client, style):
    client = make_client(access_log=style)
    raw = [(b"x-request-id", b"a\nstatus=200"), (b"x-request-id", b"\x1b[2J"), (b"traceparent", b"00-\n")]
    with logged(client.app) as lines:
        for header in raw:
            await client.get("/health", headers=[header])
        await client.get("/%0astatus=200%1b[2J")
    assert len(lines.raw.splitlines()) == 4
    assert "2J" not in lines.raw
    assert "status=200%" not in lines.raw
    assert all(record["route"] in ("/health", "unmatched") for record in lines.records(style))


def test_values_are_escaped():
    record = RequestRecord(
        request_id="r", method="GET", model='a"\n\x1b[2J\u2028 status=500\u202e', key_name="ö"
    )
    record.end()
    fields = fields_of(record)
    for line in (json_line(fields), text_line(fields)):
        assert line.isascii()
        assert line.isprintable()
    assert json.loads(json_line(fields))["model"] == record.model
    assert text_line(fields).count(" status=") == 2  # its own, and the one inside quotes


@STYLES
async def test_no_log_tells_prompts_outputs_or_keys(make_client, engine, style, caplog):
    client = make_client(access_log=style, api_key=(f"bob {KEY}",))
    engine.script = f"It is {MARK}."
    headers = {"authorization": f"Bearer {KEY}", "user-agent": f"{MARK}-agent"}
    paths = {
        "/v1/chat/completions": CHAT,
        "/v1/completions": {"prompt": MARK},
        "/v1/responses": {"input": MARK},
        "/v1/messages": CHAT | {"max_tokens": 50},
        "/tokenize": {"prompt": MARK},
    }
    with caplog.at_level(logging.DEBUG), logged(client.app) as lines:
        for path, body in paths.items():
            for stream in (False, True):
                await client.post(path, json=body | {"stream": stream}, headers=headers)
            await client.post(path, json=body | {"temperature": MARK}, headers=headers)
            await client.post(f"{path}?key={KEY}", content=f'{{"prompt": "{MARK}', headers=headers)
        engine.error = RuntimeError("no details of the request")
        await client.post("/v1/completions", json={"prompt": MARK}, headers=headers)
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name != "httpx")
    assert len(lines.raw.splitlines()) == 21
    assert "no details of the request" in ours
    for secret in (MARK, KEY):
        assert secret not in lines.raw
        assert secret not in ours


# Writing it


def test_a_pipe_that_nobody_reads_blocks_nothing():
    read_end, write_end = os.pipe()
    dropped = []
    log = AccessLog(write_end, "json", dropped.append, capacity=50)
    record = RequestRecord(request_id="r" * 1000, method="GET")
    record.end()
    begun_s = time.monotonic()
    for _ in range(2000):  # more than pipe and queue hold
        log(record)
    assert time.monotonic() - begun_s < 1
    assert 1000 < sum(dropped) < 2000
    with os.fdopen(read_end, "rb") as pipe:
        head = pipe.read(1)
        log.close()
        os.close(write_end)
        lines = (head + pipe.read()).splitlines()
    assert len(lines) == 2000 - sum(dropped)
    assert all(json.loads(line)["request_id"] == record.request_id for line in lines)


def test_a_reader_that_is_gone_loses_lines_only():
    read_end, write_end = os.pipe()
    os.close(read_end)
    dropped = []
    log = AccessLog(write_end, "text", dropped.append)
    record = RequestRecord(request_id="r", method="GET")
    record.end()
    for _ in range(10):
        log(record)
    log.close()
    os.close(write_end)
    assert sum(dropped) == 10


async def test_lost_lines_are_counted(make_client):
    client = make_client(access_log="json")
    with logged(client.app):
        pass  # closed: what comes now is lost
    await client.get("/health")
    assert "llm_stack_access_log_dropped_total 1.0" in (await client.get("/metrics")).text


def test_off_is_off(engine):
    app = create_app(ServerSettings(), engine)
    with logged(app):
        assert app.state.context.journal.sinks == []


def test_styles():
    with pytest.raises(StartupError, match="access_log: must be one of off, text, json, got 'xml'"):
        ServerSettings(access_log="xml")
