"""Overload over HTTP: rates, places, deadlines; who leaves frees what it held, in the queue too (C138)."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings
from prometheus_client.parser import text_string_to_metric_families

COMPLETION = {"prompt": "hello", "max_tokens": 3}
ROUTES = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "model": "double"},
    "/v1/responses": {"input": "hi"},
}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def until(condition, timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.001)


async def metric(client, name: str, **labels: str) -> float:
    text = (await client.get("/metrics", headers=client.headers)).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"llm_stack_{name}" and labels.items() <= sample.labels.items()
    )


async def test_requests_per_minute(make_client, engine):
    client = make_client(api_key=("a A", "b B"), requests_per_minute=3)
    for left in (2, 1, 0):
        response = await client.post("/v1/completions", json=COMPLETION, headers=bearer("A"))
        assert response.status_code == 200
        assert response.headers["x-ratelimit-limit-requests"] == "3"
        assert response.headers["x-ratelimit-remaining-requests"] == str(left)
    for path, body in ROUTES.items():
        response = await client.post(path, json=body, headers=bearer("A"))
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 20
        assert float(response.headers["x-ratelimit-reset-requests"].removesuffix("s")) > 50
        assert response.json()["error"]["type"] == "rate_limit_error"
    assert len(engine.seen) == 3
    assert (await client.get("/v1/models", headers=bearer("A"))).status_code == 200
    assert (await client.post("/v1/completions", json=COMPLETION, headers=bearer("B"))).status_code == 200
    client.headers.update(bearer("B"))
    assert await metric(client, "requests_refused_total", reason="request_rate_exceeded") == 4
    assert await metric(client, "key_requests_total", key="a") == 3
    assert await metric(client, "key_tokens_total", key="a", kind="output") == 9
    assert await metric(client, "key_tokens_total", key="b", kind="prompt") == 5


async def test_tokens_per_minute(make_client, engine):
    client = make_client(tokens_per_minute=20)
    response = await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 10})
    assert (response.status_code, response.headers["x-ratelimit-limit-tokens"]) == (200, "20")
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": "x" * 10})
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "token_rate_exceeded"
    assert response.headers["x-ratelimit-remaining-tokens"] == "5"
    assert 10 <= int(response.headers["retry-after"]) <= 15
    assert len(engine.seen) == 1
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": "x" * 30})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "prompt_exceeds_token_rate")
    # A bad request takes no tokens.
    response = await client.post("/v1/completions", json=COMPLETION | {"temperature": -1})
    assert (response.status_code, response.headers["x-ratelimit-remaining-tokens"]) == (400, "5")
    # What is generated may overdraw; the next one waits for all of it.
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": "x", "max_tokens": 20})
    assert response.status_code == 200
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": "x"})
    assert int(response.headers["retry-after"]) > 45


@pytest.mark.parametrize(("path", "body"), ROUTES.items())
async def test_every_route_waits_for_a_place(make_client, engine, path, body):
    client = make_client(max_concurrent_requests=1, max_queued_requests=1)
    engine.gate = asyncio.Event()
    queue = client.app.state.context.usage.ledger
    first = asyncio.create_task(client.post(path, json=body))
    await until(lambda: engine.live == 1)
    second = asyncio.create_task(client.post(path, json=body))
    await until(lambda: queue.num_waiting == 1)
    response = await client.post(path, json=body)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert engine.live == 1
    assert await metric(client, "queue_waiting") == 1
    assert await metric(client, "requests_refused_total", reason="queue_full") == 1
    engine.gate.set()
    assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert (queue.num_running, queue.num_waiting) == (0, 0)


async def test_fair_share_over_http(make_client, engine):
    client = make_client(api_key=("A", "B"), max_concurrent_requests=1, max_requests_per_key=3)
    engine.gate = asyncio.Event()
    queue = client.app.state.context.usage.ledger
    many = []
    for index in range(3):
        body = COMPLETION | {"prompt": f"a{index}"}
        many.append(asyncio.create_task(client.post("/v1/completions", json=body, headers=bearer("A"))))
        await until(lambda: queue.num_waiting + queue.num_running == len(many))
    response = await client.post("/v1/completions", json=COMPLETION, headers=bearer("A"))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "too_many_requests_of_key")
    late = asyncio.create_task(
        client.post("/v1/completions", json=COMPLETION | {"prompt": "b"}, headers=bearer("B"))
    )
    await until(lambda: queue.num_waiting == 3)
    engine.gate.set()
    assert {response.status_code for response in await asyncio.gather(*many, late)} == {200}
    assert [bytes(prompt).decode() for prompt, _, _ in engine.seen] == ["a0", "b", "a1", "a2"]


class Raw:
    """Speaks ASGI itself, as httpx's transport cannot leave half-way."""

    def __init__(self, app, path: str, body: dict, headers: dict[str, str] | None = None) -> None:
        self.gone = asyncio.Event()
        self.sent: list[dict] = []
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "root_path": "",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    def header(self, name: str) -> str:
        return dict(self.sent[0]["headers"])[name.encode()].decode()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


async def test_a_flood_is_answered_not_absorbed(make_client, engine):
    client = make_client(max_concurrent_requests=10, max_queued_requests=100)
    engine.gate = asyncio.Event()
    flood = [Raw(client.app, "/v1/completions", COMPLETION) for _ in range(10_000)]
    await until(lambda: sum(one.task.done() for one in flood) == 9_890, 60)
    refused = [one for one in flood if one.task.done()]
    assert {one.status for one in refused} == {429}
    assert all(int(one.header("retry-after")) >= 1 for one in refused)
    assert (engine.live, len(engine.seen)) == (10, 10)
    engine.gate.set()
    await asyncio.wait_for(asyncio.gather(*(one.task for one in flood)), 30)
    assert [one.status for one in flood].count(200) == 110
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
    assert engine.live == 0


async def test_without_limits_a_flood_waits_and_all_of_it_is_answered(make_client, engine):
    client = make_client(max_concurrent_requests=10, max_queued_requests=0)
    flood = [Raw(client.app, "/v1/completions", COMPLETION) for _ in range(2_000)]
    await asyncio.wait_for(asyncio.gather(*(one.task for one in flood)), 60)
    assert {one.status for one in flood} == {200}
    assert engine.live == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_the_queue_frees_the_place(make_client, engine, stream):
    client = make_client(max_concurrent_requests=1, tokens_per_minute=100)
    queue = client.app.state.context.usage.ledger
    engine.gate = asyncio.Event()
    body = COMPLETION | {"stream": stream}
    runs = Raw(client.app, "/v1/completions", body)
    await until(lambda: engine.live == 1)
    waits = Raw(client.app, "/v1/completions", body)
    await until(lambda: queue.num_waiting == 1)
    waits.gone.set()
    await asyncio.wait_for(waits.task, 1)
    assert (queue.num_running, queue.num_waiting, queue.num_waiting_tokens) == (1, 0, 0)
    last = Raw(client.app, "/v1/completions", body)
    await until(lambda: queue.num_waiting == 1)
    runs.gone.set()
    await asyncio.wait_for(runs.task, 1)
    await until(lambda: engine.live == 1)
    assert len(engine.seen) == 2
    engine.gate.set()
    await asyncio.wait_for(last.task, 1)
    assert last.status == 200
    assert queue.num_running == 0
    # The one that left in the queue gave its tokens back: two prompts and one answer were charged.
    response = await client.post("/v1/completions", json=COMPLETION | {"temperature": -1})
    assert 100 - 13 <= int(response.headers["x-ratelimit-remaining-tokens"]) <= 100 - 13 + 2


# Deadlines


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES.items())
async def test_deadline_before_the_answer(make_client, engine, path, body, stream):
    client = make_client()
    engine.gate = asyncio.Event()
    began_s = time.monotonic()
    response = await client.post(path, json=body | {"stream": stream}, headers={"x-timeout-s": "0.05"})
    assert response.status_code == 504
    assert time.monotonic() - began_s < 1
    assert (engine.live, engine.aborted) == (0, 1)
    error = response.json()["error"]
    assert "0.05 s" in error["message"]
    assert error["type"] == "timeout_error"
    assert await metric(client, "requests_cut_off_total", reason="deadline") == 1


@pytest.mark.parametrize(("path", "body"), ROUTES.items())
async def test_deadline_inside_a_stream(client, engine, path, body):
    engine.script = "x" * 150
    released = asyncio.Event()
    deltas = engine._deltas

    async def generate(prompt, params, *, request_id=None, priority=0, **cache):
        engine.live += 1
        try:
            for step, delta in enumerate(deltas(prompt, params, request_id or "")):
                if step == 10:  # and no more
                    await released.wait()
                yield delta
        finally:
            engine.live -= 1

    engine.generate = generate
    more = {"max_tokens": 100} if "max_tokens" in body else {}
    response = await client.post(path, json=body | more | {"stream": True}, headers={"x-timeout-s": "0.2"})
    assert response.status_code == 200
    assert "within 0.2 s" in response.text
    assert "[DONE]" not in response.text
    assert response.text.count("data:") >= 10
    assert engine.live == 0
    assert client.app.state.context.usage.ledger.num_running == 0


async def test_deadline_in_the_queue(make_client, engine):
    client = make_client(max_concurrent_requests=1)
    engine.gate = asyncio.Event()
    runs = asyncio.create_task(client.post("/v1/completions", json=COMPLETION))
    await until(lambda: engine.live == 1)
    response = await client.post("/v1/completions", json=COMPLETION, headers={"x-timeout-s": "0.05"})
    assert response.status_code == 504
    assert client.app.state.context.usage.ledger.num_waiting == 0
    engine.gate.set()
    assert (await runs).status_code == 200


async def test_the_server_bounds_what_clients_ask(make_client, engine):
    client = make_client(max_request_s=0.05)
    engine.gate = asyncio.Event()
    for headers in ({}, {"x-timeout-s": "60"}):
        response = await client.post("/v1/completions", json=COMPLETION, headers=headers)
        assert response.status_code == 504
        assert "within 0.05 s" in response.json()["error"]["message"]
    engine.gate = None
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "nan", "inf", "1e999", "1,5"])
async def test_a_bad_deadline_is_named(client, engine, value):
    response = await client.post("/v1/completions", json=COMPLETION, headers={"x-timeout-s": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-timeout-s"
    assert engine.seen == []


@pytest.mark.parametrize(
    "option",
    [
        "max_concurrent_requests",
        "max_queued_requests",
        "max_queued_tokens",
        "max_requests_per_key",
        "requests_per_minute",
        "tokens_per_minute",
        "max_request_s",
    ],
)
def test_negative_limits_are_refused(option):
    with pytest.raises(StartupError, match=option):
        ServerSettings(**{option: -1})
