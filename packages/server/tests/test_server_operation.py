"""Keys, probes, phases, metrics, disconnects, the model list."""

from __future__ import annotations

import asyncio
import json

import pytest
from llm_engine.core.core_state import CoreState
from llm_engine.errors import EngineRestarting
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings
from prometheus_client.parser import text_string_to_metric_families

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.001)


def values(text: str) -> dict[str, float]:
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/double"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "/nothing"),
        ("OPTIONS", "/v1/models"),
        ("GET", "//health/live"),
        ("GET", "/health/live/"),
        ("GET", "/HEALTH"),
    ],
)
async def test_key_guards_everything(make_client, method, path):
    client = make_client(api_key=("k1", "k2"))
    bodies = set()
    for headers in (
        {},
        {"authorization": "Bearer no"},
        {"authorization": "k1"},
        {"authorization": "Basic k1"},
    ):
        response = await client.request(method, path, headers=headers)
        assert response.status_code == 401
        bodies.add(response.content)
    assert len(bodies) == 1
    raw = [(b"authorization", b"Bearer \xff\xfe")]
    assert (await client.request(method, path, headers=raw)).status_code == 401
    for key in ("k1", "k2"):
        response = await client.request(method, path, headers={"authorization": f"Bearer {key}"})
        assert response.status_code != 401


async def test_probes_need_no_key(make_client):
    client = make_client(api_key=("k1",))
    for path in ("/health", "/health/live", "/health/ready"):
        assert (await client.get(path)).status_code == 200


def test_bad_keys_stop_the_start(tmp_path):
    for keys in (("",), ("k", "  ")):
        with pytest.raises(StartupError, match="empty"):
            create_app(ServerSettings(api_key=keys))
    empty = tmp_path / "keys"
    empty.write_text("# nothing\n")
    with pytest.raises(StartupError, match="holds no key"):
        create_app(ServerSettings(api_key_file=str(empty)))
    with pytest.raises(StartupError, match="api_key_file"):
        create_app(ServerSettings(api_key_file=str(tmp_path / "missing")))


async def test_keys_from_a_file(make_client, tmp_path):
    path = tmp_path / "keys"
    path.write_text("# comment\nsecret-1\n\nsecret-2\n")
    client = make_client(api_key_file=str(path))
    assert (await client.get("/version")).status_code == 401
    assert (await client.get("/version", headers={"authorization": "Bearer secret-2"})).status_code == 200


async def test_phases(make_client, engine):
    client = make_client(start=False)
    assert (await client.get("/health/live")).status_code == 200
    response = await client.get("/health/ready")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "starting"
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    lifecycle = client.app.state.context.lifecycle
    lifecycle.attach(engine)
    assert (await client.get("/health")).status_code == 200
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    engine.state = CoreState(phase="dead", generation=1, deaths=1)
    assert (await client.get("/health")).json()["error"]["code"] == "engine_dead"
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 503
    assert "llm_stack_engine_up 0.0" in (await client.get("/metrics")).text


async def test_requests_wait_while_the_core_is_restarted(client, engine):
    before = values((await client.get("/metrics")).text)
    engine.state = CoreState(
        phase="restarting", generation=1, deaths=1, attempt=1, reason="the core was ended"
    )
    response = await client.get("/health/ready")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    error = response.json()["error"]
    assert error["code"] == "engine_restarting"
    assert "attempt 1: the core was ended" in error["message"]
    assert (await client.get("/health/live")).status_code == 200
    engine.gate = asyncio.Event()
    waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await until(lambda: engine.live > 0)
    text = (await client.get("/metrics")).text
    assert 'llm_stack_engine_phase{phase="restarting"} 1.0' in text
    assert values(text)["llm_stack_engine_up{}"] == 0
    finished = 'llm_stack_engine_requests_finished_total{"reason": "stop"}'
    assert values(text)[finished] == before[finished] == 4
    engine.state = CoreState(phase="running", generation=2, deaths=1)
    engine.gate.set()
    assert (await waiting).status_code == 200
    after = values((await client.get("/metrics")).text)
    assert after[finished] == 8  # what the first core counted, and the second
    assert after["llm_stack_core_deaths_total{}"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_while_the_core_is_restarted(client, engine, stream):
    engine.error = EngineRestarting(2.5)
    response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"]["code"] == "engine_restarting"


async def test_drain_lets_running_requests_finish(client, engine):
    engine.gate = asyncio.Event()
    lifecycle = client.app.state.context.lifecycle
    running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await until(lambda: engine.live > 0)
    lifecycle.begin_drain()
    assert not await lifecycle.wait_idle(0.01)
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    assert (await client.get("/health/ready")).status_code == 503
    assert (await client.get("/health/live")).status_code == 200
    engine.gate.set()
    assert (await running).status_code == 200
    assert await lifecycle.wait_idle(1)


async def test_metrics(client, engine):
    before = values((await client.get("/metrics")).text)
    assert before['llm_stack_kv_blocks{"state": "used"}'] == 3
    assert before["llm_stack_kv_cache_usage_ratio{}"] == 0.3
    await client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 5})
    await client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 0})
    after = values((await client.get("/metrics")).text)
    route = '{"route": "/v1/chat/completions"}'
    assert after['llm_stack_requests_total{"outcome": "length", "route": "/v1/chat/completions"}'] == 1
    assert after[f"llm_stack_time_to_first_token_seconds_count{route}"] == 1
    assert after[f"llm_stack_inter_token_latency_seconds_count{route}"] == 4
    assert after[f"llm_stack_request_latency_seconds_count{route}"] == 1
    assert after[f"llm_stack_request_output_tokens_sum{route}"] == 5
    counted = (
        'llm_stack_http_requests_total{"method": "POST", "route": "/v1/chat/completions", "status": "%d"}'
    )
    assert after[counted % 200] == 1
    assert after[counted % 400] == 1
    assert after['llm_stack_engine_requests_finished_total{"reason": "stop"}'] == 4


async def test_two_applications_share_no_metrics(make_client):
    first, second = make_client(), make_client()
    await first.post("/v1/chat/completions", json=CHAT)
    assert "llm_stack_requests_total{" not in (await second.get("/metrics")).text


async def test_unmatched_paths_make_no_labels(client):
    await client.get("/a/secret/path")
    text = (await client.get("/metrics")).text
    assert "secret" not in text
    assert 'route="unmatched"' in text


async def test_models(make_client, engine):
    client = make_client(served_model_name=("org/a", "b"))
    listed = (await client.get("/v1/models")).json()
    assert [card["id"] for card in listed["data"]] == ["org/a", "b"]
    card = (await client.get("/v1/models/org/a")).json()
    assert (card["id"], card["max_model_len"], card["object"]) == ("org/a", 200, "model")
    assert (await client.get("/v1/models/double")).status_code == 404
    answer = (await client.post("/v1/chat/completions", json=CHAT | {"model": "b"})).json()
    assert answer["model"] == "b"


# A whole answer is sent at once, so it cannot be left half-way.
@pytest.mark.parametrize(("stream", "after_first_token"), [(False, False), (True, False), (True, True)])
async def test_disconnect_aborts_at_once(client, engine, stream, after_first_token):
    """Speaks ASGI itself, as httpx's transport cannot leave half-way."""
    if not after_first_token:
        engine.gate = asyncio.Event()
    gone = asyncio.Event()
    body = json.dumps(CHAT | {"stream": stream}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) >= 3:
            await asyncio.sleep(3600)  # a client that reads no more

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    serving = asyncio.create_task(client.app(scope, receive, send))
    await until(lambda: engine.live > 0)
    if after_first_token:
        await until(lambda: len(sent) >= 3)
    gone.set()
    await asyncio.wait_for(serving, 1)
    assert engine.live == 0
    assert engine.aborted == 1
    outcome = values((await client.get("/metrics")).text)
    assert outcome['llm_stack_requests_total{"outcome": "abort", "route": "/v1/chat/completions"}'] == 1
