"""Fault cases of load that need the real model: short requests beside a very long prompt."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

TEXT = "/v1/completions"
LONG_TOKENS = 1500


def first_token_s(client: httpx.Client, prompt: list[int]) -> float:
    """Seconds to the first token of a stream."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    begun_s = time.monotonic()
    with client.stream("POST", TEXT, json=body) as response:
        assert response.status_code == 200
        assert any(line.startswith("data: {") for line in response.iter_lines())
    return time.monotonic() - begun_s


def token_gaps_s(client: httpx.Client, until_s: list[float]) -> list[float]:
    """Pauses between the tokens of a stream that runs until `until_s` holds something."""
    body = {"prompt": "Once", "max_tokens": 1500, "temperature": 0, "stream": True, "ignore_eos": True}
    came_s: list[float] = []
    with client.stream("POST", TEXT, json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                came_s.append(time.monotonic())
            if until_s:
                break
    return [after - before for before, after in itertools.pairwise(came_s)]


def test_short_requests_beside_a_very_long_prompt(start_server):
    """Steps are small, and half of each at most goes to a long prompt while others want some."""
    flags = ("--max-num-batched-tokens", "64", "--long-prefill-share", "0.5")
    url = start_server(*flags, "--long-prompt-tokens", "128").url
    long = [1000 + index % 7000 for index in range(LONG_TOKENS)]
    ended: list[float] = []
    # One client, made before: making one takes as long as some steps.
    with ThreadPoolExecutor(12) as pool, httpx.Client(base_url=url, timeout=300) as client:
        first_token_s(client, [1, 2, 3])
        decoding = pool.submit(token_gaps_s, client, ended)
        time.sleep(0.5)
        begun = pool.submit(first_token_s, client, long)
        time.sleep(0.1)
        shorts = [
            pool.submit(first_token_s, client, [500 + 10 * number + index for index in range(10)])
            for number in range(5)
        ]
        waits = sorted(one.result() for one in shorts)
        long_s = begun.result()
        ended.append(long_s)
        gaps = decoding.result()
    print(f"long {long_s:.2f} s; short p95 {waits[-1]:.2f} s; longest pause {max(gaps):.2f} s")
    assert waits[-1] < 0.25 * long_s
    assert max(gaps) < max(0.5, 0.25 * long_s)  # half a second on an idle machine
