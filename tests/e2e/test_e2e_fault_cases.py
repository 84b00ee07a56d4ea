"""Fault cases that need the real model: sampling, logprobs, cache hits, neighbours, clients that leave."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
FRANCE = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
HI = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8}


def strict_json(response: httpx.Response):
    """The body; NaN and Infinity, which are no JSON, fail."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert response.status_code == 200, response.text
    return json.loads(response.text, parse_constant=refuse)


def ask(server, body, path: str = TEXT):
    return strict_json(server.http.post(path, json=body))


# C011, C014, C016


@pytest.mark.parametrize("more", [{}, {"top_logprobs": None}, {"top_logprobs": 0}])
def test_logprobs_without_alternatives(server, alive, more):
    answer = ask(server, HI | {"logprobs": True, "max_tokens": 3} | more, CHAT)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert all(entry["logprob"] <= 0 and entry["top_logprobs"] == [] for entry in entries)


def test_alternatives_are_distinct_ordered_and_not_empty(server, alive):
    content = "Repeat to the letter: “ok” 🌶 日本"
    body = HI | {"messages": [{"role": "user", "content": content}], "max_tokens": 24}
    [choice] = ask(server, body | {"logprobs": True, "top_logprobs": 5}, CHAT)["choices"]
    entries = choice["logprobs"]["content"]
    if choice["finish_reason"] == "stop":
        assert entries.pop()["token"].startswith("<|")
    raw = bytes(byte for entry in entries for byte in entry["bytes"])
    assert raw.decode(errors="ignore") == choice["message"]["content"].rstrip("\ufffd")
    for entry in entries:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert len({tuple(top["bytes"]) for top in entry["top_logprobs"]}) == 5
        assert all(top["bytes"] for top in entry["top_logprobs"])
        assert entry["logprob"] == values[0]  # greedy


@pytest.mark.parametrize(
    "more",
    [{"temperature": 0.01, "top_p": 0.3}, {"temperature": 1, "top_k": 1}, {"logit_bias": {"1000": -100}}],
)
def test_logprobs_are_finite_where_tokens_are_masked(server, alive, more):
    [choice] = ask(server, FRANCE | {"logprobs": 5, "seed": 1} | more)["choices"]
    values = choice["logprobs"]["token_logprobs"]
    assert all(-10_000 < value <= 0 for value in values)


# C018, C090: hits of the prefix cache at the borders of blocks


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 64])
def test_prompt_logprobs_with_a_cache_hit(server, alive, length):
    prompt = [2000 + length * 70 + index for index in range(length)]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    plain = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    first, text = ask(server, body), ask(server, plain)
    for _ in range(2):
        again = ask(server, body)
        lists, before = again["choices"][0]["logprobs"], first["choices"][0]["logprobs"]
        assert len(lists["token_logprobs"]) == length + 1
        assert lists["token_logprobs"][0] is None
        assert lists["tokens"] == before["tokens"]
        assert lists["token_logprobs"][1:] == pytest.approx(before["token_logprobs"][1:], abs=1e-3)
        hit = ask(server, plain)
        assert hit["choices"][0]["text"] == text["choices"][0]["text"]
        cached = hit["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (length - 1) // 16 * 16
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(server, plain)["choices"][0]["text"], range(4)))
    assert set(answers) == {text["choices"][0]["text"]}


# C021, C024: ids outside the vocabulary beside a neighbour


OUTSIDE = [
    ({"stop_token_ids": [49_152], "min_tokens": 1}, "stop_token_ids"),
    ({"stop_token_ids": [-1], "min_tokens": 1}, "stop_token_ids"),
    ({"logit_bias": {"49152": 1}}, "logit_bias"),
    ({"logit_bias": {"99152": 1}}, "logit_bias"),
    ({"prompt": [49_152]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
]


def test_ids_outside_the_vocabulary_do_not_touch_a_neighbour(server, alive):
    long = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 32}
    alone = ask(server, long)["choices"][0]["text"]
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(ask, server, long)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            for more, param in OUTSIDE * 3:
                response = other.post(TEXT, json={"prompt": "hi", "max_tokens": 4} | more)
                assert response.status_code == 400
                assert response.json()["error"]["param"] == param
        assert neighbour.result()["choices"][0]["text"] == alone


# C097: special ids are legal prompts


def test_turn_marks_are_legal_token_ids(server, alive):
    tokens = server.http.post("/tokenize", json={"messages": HI["messages"]}).json()["tokens"]
    assert 1 in tokens
    assert 2 in tokens
    rendered = ask(server, {"prompt": tokens, "max_tokens": 8, "temperature": 0})
    chat = ask(server, HI, CHAT)
    assert rendered["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert rendered["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"] == len(tokens)


# C028, C034


@pytest.mark.parametrize("temperature", [1e-4, 1e-8])
def test_tiny_temperatures_are_greedy(server, alive, temperature):
    greedy = ask(server, FRANCE)["choices"][0]["text"]
    assert ask(server, FRANCE | {"temperature": temperature})["choices"][0]["text"] == greedy
    for top_k in (0, -1, 10**6):  # 0 and -1 keep all, as does more than there are
        assert ask(server, FRANCE | {"top_k": top_k})["choices"][0]["text"] == greedy


def test_a_seed_is_the_requests_own(server, alive):
    seeded = FRANCE | {"seed": 42, "temperature": 0.8, "ignore_eos": True, "logprobs": 0}
    unseeded = {key: value for key, value in seeded.items() if key != "seed"} | {"prompt": "def add(a, b):"}
    alone = ask(server, seeded)["choices"][0]["logprobs"]["tokens"]

    def post(body):
        with httpx.Client(base_url=server.url, timeout=60) as client:
            return strict_json(client.post(TEXT, json=body))["choices"][0]["logprobs"]["tokens"]

    for round_number in range(4):
        order = [seeded, unseeded] if round_number % 2 else [unseeded, seeded]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(post, order))
        assert answers[order.index(seeded)] == alone


# C044


def test_leaving_in_prefill_again_and_again(server, alive):
    """The longest prompts, whose clients have no patience, beside a stream that goes on."""
    limit = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    long = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 16}
    alone = ask(server, long)["choices"][0]["text"]
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(ask, server, long)
        for number in range(5):
            prompt = [3000 + (index * (number + 3)) % 40_000 for index in range(limit - 10)]
            with (
                httpx.Client(base_url=server.url, timeout=0.3) as client,
                pytest.raises(httpx.TimeoutException),
            ):
                client.post(TEXT, json={"prompt": prompt, "max_tokens": 4})
        assert neighbour.result()["choices"][0]["text"] == alone


# C142


def test_bytes_that_are_no_text_stay_with_their_request(server, alive):
    """Nothing but continuation bytes is sampled: replacement marks for that request, nothing for others."""
    tokens = {}
    for token in range(49_152):
        if len(tokens) == 8:
            break
        shown = (
            server.http.post("/detokenize", json={"tokens": [token]}).json()["prompt"] if token < 400 else ""
        )
        if shown == "\ufffd":
            tokens[str(token)] = 100
    assert len(tokens) == 8
    odd = {
        "prompt": "Hello",
        "temperature": 2,
        "seed": 5,
        "max_tokens": 16,
        "ignore_eos": True,
        "logit_bias": tokens,
    }
    alone = ask(server, FRANCE)["choices"][0]["text"]

    def post(body):
        with httpx.Client(base_url=server.url, timeout=60) as client:
            return strict_json(client.post(TEXT, json=body))["choices"][0]

    with ThreadPoolExecutor(5) as pool:
        [strange, *others] = pool.map(post, [odd, FRANCE, FRANCE, FRANCE, FRANCE])
    assert {choice["text"] for choice in others} == {alone}
    assert "\ufffd" in strange["text"]
    strange["text"].encode()


# C031


def test_scoring_calls(server, alive):
    answer = ask(server, {"prompt": "a b c", "echo": True, "max_tokens": 0, "logprobs": 1})
    [choice] = answer["choices"]
    assert choice["text"] == "a b c"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    response = server.http.post(CHAT, json=HI | {"max_tokens": 0})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


# C163, C181: what listens


def listening(process_id: int) -> set[str]:
    """Addresses of the process's listening TCP sockets, as /proc writes them."""
    inodes = set()
    for link in Path(f"/proc/{process_id}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(link.readlink()).removeprefix("socket:[").rstrip("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1])
    return found


def test_nothing_listens_but_the_port_on_loopback(server, alive):
    assert listening(server.process.pid) == {f"0100007F:{server.port:04X}"}
    assert listening(server.core_pid()) == set()  # the core is reached by sockets in a folder of its own


def test_no_foreign_page_and_no_operator_route(server, alive):
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for method in ("OPTIONS", "POST"):
        response = server.http.request(method, CHAT, json=HI, headers=headers)
        assert not any(name.startswith("access-control-") for name in response.headers)
    for path in (
        "sleep",
        "wake_up",
        "reload",
        "reset_prefix_cache",
        "start_profile",
        "collective_rpc",
        "v1/load_lora",
    ):
        assert server.http.post(f"/{path}", json={}).status_code == 404
    for path in ("docs", "redoc"):
        assert server.http.get(f"/{path}").status_code == 404


# C131: a second signal


def test_a_second_signal_does_not_wait(start_server):
    server = start_server("--drain-timeout-s", "300", "--max-model-len", "2048")
    core = server.core_pid()
    body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", TEXT, json=body) as response,
    ):
        next(response.iter_lines())
        server.process.send_signal(signal.SIGTERM)
        until_draining(server)
        refused = server.http.post(TEXT, json=FRANCE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(15)
    assert not Path(f"/proc/{core}").exists()


def until_draining(server) -> None:
    deadline_s = time.monotonic() + 10
    while server.http.get("/health/ready").status_code == 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
