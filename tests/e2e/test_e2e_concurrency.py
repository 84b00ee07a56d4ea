"""Many streams at once, and clients that leave."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

PROMPTS = ["The capital of France is", "1, 2, 3, 4,", "Water boils at", "Once upon a time there was"]
STREAMS = 32


async def test_32_streams_equal_their_solo_texts(server, alive):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def text(prompt: str) -> str:
            stream = await client.completions.create(
                model="smollm2", prompt=prompt, temperature=0, max_tokens=8, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        alone = {prompt: await text(prompt) for prompt in PROMPTS}
        asked = [PROMPTS[index % len(PROMPTS)] for index in range(STREAMS)]
        together = await asyncio.gather(*map(text, asked))
        assert together == [alone[prompt] for prompt in asked]


def wait_for_blocks(server, used: float, limit_s: float) -> float:
    began_s = time.monotonic()
    while server.used_blocks() > used:
        assert time.monotonic() - began_s < limit_s, "the blocks did not come back"
        time.sleep(0.02)
    return time.monotonic() - began_s


def test_leaving_a_stream_frees_its_blocks(server, alive):
    before = server.used_blocks()
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True, "n": 2}
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        for _ in range(10):
            next(lines)
        assert server.used_blocks() > before
    wait_for_blocks(server, before, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token(server, alive, stream):
    before = server.used_blocks()
    aborted = 'llm_stack_requests_total{"outcome": "abort", "route": "/v1/completions"}'
    count = server.metrics().get(aborted, 0)
    limit = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    prompt = [1000 + index % 7000 + 37 * stream for index in range(limit - 600)]  # a prefill of seconds
    body = {"prompt": prompt, "max_tokens": 500, "ignore_eos": True, "stream": stream}
    with httpx.Client(base_url=server.url, timeout=0.4) as client, pytest.raises(httpx.TimeoutException):
        client.post("/v1/completions", json=body)
    wait_for_blocks(server, before, 20)  # the step in flight, a chunk of the prompt, must end first
    assert server.metrics()[aborted] == count + 1


def test_a_neighbour_does_not_notice(server, alive, client):
    options = {"model": "smollm2", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 16}
    alone = client.completions.create(**options).choices[0].text

    def leave() -> None:
        body = {"prompt": "Water boils at", "max_tokens": 800, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=server.url, timeout=60) as other:
            for _ in range(3):
                with other.stream("POST", "/v1/completions", json=body) as response:
                    next(response.iter_lines())

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave)
        beside = client.completions.create(**options).choices[0].text
        leaving.result()
    assert beside == alone


def test_same_request_id_twice(server, alive):
    def ask(prompt: str) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        return httpx.post(
            f"{server.url}/v1/completions", json=body, headers={"x-request-id": "same"}, timeout=60
        )

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, PROMPTS[:2])
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "same"
    assert first.json()["choices"][0]["text"].startswith(" Paris")
    assert second.json()["choices"][0]["text"].startswith(" 5")


def test_metrics_agree_with_usage(server, client):
    before = server.metrics()
    usage = client.completions.create(model="smollm2", prompt="Water boils at", max_tokens=5).usage
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("llm_stack_prompt_tokens_total{}") == usage.prompt_tokens
    assert grown("llm_stack_generation_tokens_total{}") == usage.completion_tokens
    route = '{"route": "/v1/completions"}'
    assert grown(f"llm_stack_time_to_first_token_seconds_count{route}") == 1
    assert grown(f"llm_stack_request_latency_seconds_count{route}") == 1
    assert grown(f"llm_stack_inter_token_latency_seconds_count{route}") == usage.completion_tokens - 1
