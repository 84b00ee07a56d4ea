"""Fault cases of streams: the order of the tail, ends of choices, ids, clients that leave, counters."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from prometheus_client.parser import text_string_to_metric_families
from server_answers import CHAT, HELLO, HI, TEXT, client_of, streamed, text_of, whole
from server_replay_engine import ReplayEngine

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno ☀️", "unit": "}{"}}\n</tool_call>'
TOOLS = {"tools": [WEATHER], "max_tokens": 200}


@pytest.fixture
def replay():
    return ReplayEngine()


@pytest.fixture
def http(replay):
    return client_of(replay, output_format="hermes")


# C037


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("n", [1, 3])
async def test_the_usage_is_the_last_chunk(http, replay, path, n):
    replay.script = "one two three"
    body = (HI if path == CHAT else HELLO) | {"n": n}
    *chunks, last = await streamed(http, path, body)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["completion_tokens"] == n * (len(replay.tokenizer.encode(replay.script)) + 1)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage == (await whole(http, path, body))["usage"]
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)


# C039, C040, C041


@pytest.mark.parametrize("size", [1, 8])
async def test_each_choice_ends_once(http, replay, size):
    replay.tokens_per_step = size
    replay.script = f"Look: {CALL}"
    bodies = [TOOLS, {"max_tokens": 3}, {"stop": ["get"]}, {}, TOOLS | {"n": 3}, TOOLS | {"max_tokens": 20}]
    gate = asyncio.Semaphore(32)

    async def ask(number: int) -> None:
        async with gate:
            body = HI | bodies[number % len(bodies)]
            events = await streamed(http, CHAT, body)  # also checks that [DONE] is the last
        ended: list[int] = []
        for event in events[:-1]:
            [choice] = event["choices"]
            assert choice["index"] not in ended
            if choice["finish_reason"] is not None:
                assert choice["finish_reason"] in ("stop", "length", "tool_calls")
                ended.append(choice["index"])
        assert sorted(ended) == list(range(body.get("n", 1)))

    await asyncio.gather(*map(ask, range(200)))
    assert (replay.live, replay.num_open) == (0, 0)


@pytest.mark.parametrize("more", [{}, TOOLS])
async def test_every_chunk_has_its_keys(http, replay, more):
    replay.script = f"<think>Hm.</think>Look: {CALL}"
    events = await streamed(http, CHAT, HI | more)
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            assert {"index", "delta", "finish_reason"} <= set(choice)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize("more", [{"max_tokens": 5}, {"stop": ["three"]}, TOOLS])
@pytest.mark.parametrize("size", [1, 4, 50])
async def test_no_text_rides_with_the_end(http, replay, more, size):
    replay.tokens_per_step = size
    replay.script = CALL if more is TOOLS else "one two three four five six"
    events = await streamed(http, CHAT, HI | more)
    parts = [part for event in events for part in event["choices"]]
    assert parts[-1]["finish_reason"]
    assert parts[-1]["delta"] == {}
    [choice] = (await whole(http, CHAT, HI | more))["choices"]
    assert "".join(map(text_of, parts)) == (choice["message"]["content"] or "")


async def test_the_end_of_a_completion_has_no_text(http, replay):
    replay.script = "one two three four five six"
    events = await streamed(http, TEXT, HELLO | {"max_tokens": 5})
    parts = [part for event in events for part in event["choices"]]
    assert (parts[-1]["text"], parts[-1]["finish_reason"]) == ("", "length")
    for event in events:
        kept = [part for part in event["choices"] if part["finish_reason"]]
        Completion.model_validate(event | {"choices": kept}, strict=True)


# C056


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 100])
async def test_streamed_arguments_join_at_any_step_size(http, replay, size):
    replay.tokens_per_step = size
    replay.script = f"{CALL}\n{CALL}"
    joined: dict[int, str] = {}
    for event in await streamed(http, CHAT, HI | TOOLS):
        for choice in event["choices"]:
            for part in choice["delta"].get("tool_calls", ()):
                joined[part["index"]] = joined.get(part["index"], "") + part["function"]["arguments"]
    [choice] = (await whole(http, CHAT, HI | TOOLS))["choices"]
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert list(joined.values()) == calls
    assert [json.loads(call) for call in calls] == [{"city": "Brno ☀️", "unit": "}{"}] * 2


# C042, C046, C135


def counted(text: str) -> dict[str, float]:
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def leave(http, body, after: int, headers=None) -> None:
    """Read some chunks of a stream, then go."""
    request = [{"type": "http.request", "body": json.dumps(body | {"stream": True}).encode()}]
    received, left = 0, asyncio.Event()

    async def receive():
        if request:
            return request.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal received
        received += message["type"] == "http.response.body"
        if received >= after:
            left.set()

    names = {"content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": CHAT,
        "raw_path": CHAT.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        "client": ("127.0.0.1", 1), "server": ("test", 80), "state": {},
    }  # fmt: skip
    await http._transport.app(scope, receive, send)


async def test_leaving_a_stream_ends_the_work(http, replay):
    body = HI | {"ignore_eos": True, "max_tokens": 1900}
    async with asyncio.timeout(10):
        await leave(http, body, 5)
    assert (replay.live, replay.num_open) == (0, 0)
    labels = json.dumps({"outcome": "abort", "route": CHAT}, sort_keys=True)
    assert counted((await http.get("/metrics")).text)["llm_stack_requests_total" + labels] == 1
    assert (await whole(http, CHAT, HI))["choices"][0]["message"]["content"] == "Hello."


async def test_the_same_id_many_times_over(http, replay):
    """Own texts for all, the id echoed, nothing left; some of them leave."""
    random_numbers = random.Random(7)
    headers = {"x-request-id": "same"}

    async def ask() -> None:
        if random_numbers.random() < 0.5:
            await leave(
                http, HI | {"max_tokens": 1000, "ignore_eos": True}, random_numbers.randint(1, 4), headers
            )
            return
        words = random_numbers.randint(1, 5)
        response = await http.post(CHAT, json=HI | {"max_tokens": words}, headers=headers)
        assert response.headers["x-request-id"] == "same"
        assert response.json()["usage"]["completion_tokens"] == words

    replay.script = "one two three four five six seven eight"
    for _ in range(20):
        await asyncio.gather(*(ask() for _ in range(20)))
    assert (replay.live, replay.num_open) == (0, 0)
    assert counted((await http.get("/metrics")).text)["llm_stack_requests_running{}"] == 0


async def test_outcomes_are_counted_apart(http, replay):
    replay.script = "one two three"
    for number in range(20):
        await whole(http, CHAT, HI | ({"max_tokens": 2} if number % 2 else {}))
    for _ in range(5):
        await leave(http, HI | {"max_tokens": 1000, "ignore_eos": True}, 3)
    for _ in range(3):
        assert (await http.post(CHAT, json=HI | {"temperature": -1})).status_code == 400
    found = counted((await http.get("/metrics")).text)

    def outcome(name: str) -> float:
        labels = json.dumps({"outcome": name, "route": CHAT}, sort_keys=True)
        return found["llm_stack_requests_total" + labels]

    assert (outcome("stop"), outcome("length"), outcome("abort")) == (10, 10, 5)
    route = json.dumps({"route": CHAT})
    assert found["llm_stack_request_latency_seconds_count" + route] == 25
    assert found["llm_stack_time_to_first_token_seconds_count" + route] == 25
    refused = json.dumps({"method": "POST", "route": CHAT, "status": "400"}, sort_keys=True)
    assert found["llm_stack_http_requests_total" + refused] == 3
