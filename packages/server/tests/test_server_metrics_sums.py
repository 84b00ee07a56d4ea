"""Metrics agree with each other, also right after a mass abort: through the real front half of the engine."""
# ruff: noqa: ASYNC110 -- what is waited for has no event

from __future__ import annotations

import asyncio

import httpx
import pytest
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from server_metrics_text import counts, samples, total
from server_replay_engine import ReplayEngine

TEXT = "/v1/completions"
GAUGES = (
    "llm_stack_http_requests_in_flight",
    "llm_stack_queue_running",
    "llm_stack_queue_waiting",
    "llm_stack_queue_waiting_tokens",
    "llm_stack_requests_running",
    "llm_stack_requests_waiting",
)


@pytest.fixture
def replay():
    engine = ReplayEngine()
    engine.script = " word" * 1500
    return engine


@pytest.fixture
async def client(replay):
    app = create_app(ServerSettings(max_concurrent_requests=10), replay)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def read(client):
    return samples((await client.get("/metrics")).text)


def body(prompt, max_tokens):
    return {"prompt": prompt, "max_tokens": max_tokens, "stream": True}


async def test_right_after_a_mass_abort(client, replay):
    first = await read(client)
    short = [client.post(TEXT, json=body("a b c", 1 + number)) for number in range(5)]
    assert all(answer.status_code == 200 for answer in await asyncio.gather(*short))
    await client.post(TEXT, json={"prompt": "a", "max_tokens": -1})
    await client.post(TEXT, json=body("a", 500), headers={"x-timeout-s": "0.02"})
    running = [asyncio.create_task(client.post(TEXT, json=body("d e", 1500))) for _ in range(40)]
    async with asyncio.timeout(10):
        while total(during := await read(client), "llm_stack_queue_waiting") < 30:
            await asyncio.sleep(0)
    assert total(during, "llm_stack_queue_running") == total(during, "llm_stack_requests_running") == 10
    assert total(during, "llm_stack_http_requests_in_flight") == 40
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    after = await read(client)

    assert {name: total(after, name) for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    assert min(after.values()) >= 0
    for earlier, later in ((first, during), (during, after)):
        before = counts(earlier)
        assert all(value >= before.get(key, 0) for key, value in counts(later).items())
        assert before.keys() <= counts(later).keys()
    answers = total(after, "llm_stack_http_requests_total")
    assert answers == total(after, "llm_stack_request_outcomes_total")
    of_route = {"route": TEXT}
    outcomes = {
        outcome: total(after, "llm_stack_request_outcomes_total", **of_route, outcome=outcome)
        for outcome in ("finished", "aborted", "deadline", "error")
    }
    assert outcomes == {"finished": 5, "aborted": 40, "deadline": 1, "error": 1}
    ended = total(after, "llm_stack_requests_total", **of_route)
    assert ended == 46  # the refused one never reached the model
    for histogram in ("request_latency_seconds", "request_prompt_tokens", "request_output_tokens"):
        assert total(after, f"llm_stack_{histogram}_count", **of_route) == ended
    begun = total(after, "llm_stack_time_to_first_token_seconds_count")
    assert begun == total(after, "llm_stack_request_queue_seconds_count")
    tokens = total(after, "llm_stack_request_output_tokens_sum")
    assert tokens == begun + total(after, "llm_stack_inter_token_latency_seconds_count")
    assert replay.num_open == 0


async def test_a_response_that_ends_as_it_begins_frees_its_place(client, replay):
    """A client may leave at the very moment of the first token."""
    for turns in range(0, 60, 3):
        answers = client.post("/v1/responses", json={"input": "d e", "stream": True, "store": False})
        leaving = asyncio.create_task(answers)
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    after = await read(client)
    assert {name: total(after, name) for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    assert total(after, "llm_stack_time_to_first_token_seconds_count") > 0  # some had begun
    assert replay.num_open == 0


async def test_rounds_of_one_request_count_their_own_tokens(client, replay):
    """Usage adds up over several generations of a request; the histograms must not."""
    from llm_stack_server.generation import Usage

    before = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)
    now = Usage(prompt_tokens=25, completion_tokens=9, cached_tokens=3, reasoning_tokens=2)
    assert now.since(before) == Usage(prompt_tokens=15, completion_tokens=4)
