"""Bad input of every kind: a clear 4xx, nothing queued, and the server answers as before."""

from __future__ import annotations

import socket

import pytest

PROMPT = {"prompt": "hi", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
LARGE = 10**9

CASES = [
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": [[]]}, 400, "prompt"),
    ("/v1/completions", {"prompt": "word " * 20_000}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["ok", "word " * 20_000]}, 400, "prompt[1]"),
    ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [49_152]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [2**31]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1.5]}, 400, "prompt"),
    ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
    ("/v1/completions", PROMPT | {"max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", PROMPT | {"max_tokens": -5}, 400, "max_tokens"),
    ("/v1/completions", PROMPT | {"max_tokens": LARGE}, 400, "max_tokens"),
    ("/v1/completions", PROMPT | {"max_tokens": 10**30}, 400, "max_tokens"),
    ("/v1/completions", PROMPT | {"max_tokens": "2"}, 400, "max_tokens"),
    ("/v1/completions", PROMPT | {"temperature": -1}, 400, "temperature"),
    ("/v1/completions", PROMPT | {"temperature": LARGE}, 400, "temperature"),
    ("/v1/completions", PROMPT | {"top_p": -0.1}, 400, "top_p"),
    ("/v1/completions", PROMPT | {"top_k": -9}, 400, "top_k"),
    ("/v1/completions", PROMPT | {"min_p": 2}, 400, "min_p"),
    ("/v1/completions", PROMPT | {"presence_penalty": LARGE}, 400, "presence_penalty"),
    ("/v1/completions", PROMPT | {"repetition_penalty": -1}, 400, "repetition_penalty"),
    ("/v1/completions", PROMPT | {"logit_bias": {"49152": 1}}, 400, "logit_bias"),
    ("/v1/completions", PROMPT | {"stop_token_ids": [49_152], "min_tokens": 1}, 400, "stop_token_ids"),
    ("/v1/completions", PROMPT | {"model": "gpt-9"}, 404, "model"),
    ("/v1/completions", PROMPT | {"model": 7}, 400, "model"),
    ("/v1/completions", PROMPT | {"n": 0}, 400, "n"),
    ("/v1/completions", {"prompt": "x" * 10_000_000}, 413, None),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", CHAT | {"max_completion_tokens": 3}, 400, "max_completion_tokens"),
    ("/v1/chat/completions", CHAT | {"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "yaml"}}, 400, "response_format.type"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 20_000}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    ("/detokenize", {"tokens": [49_152]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": ["1"]}, 400, "tokens[0]"),
    ("/tokenize", {}, 400, None),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bad_field(server, alive, case):
    path, body, status, param = CASES[case]
    added = server.metrics()["llm_stack_engine_requests_added_total{}"]
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text[:500]
    error = response.json()["error"]
    assert error["message"]
    if param is not None:
        assert error["param"] == param
        assert param.split("[")[0] in error["message"]
    assert server.metrics()["llm_stack_engine_requests_added_total{}"] == added


BYTES = [
    b"",
    b"{",
    b'{"prompt": "hi"',
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\\ud83d"}',
    b'{"prompt": "hi", "temperature": NaN}',
    b'{"prompt": "hi", "temperature": -Infinity}',
    b'{"prompt": "hi", "temperature": 1e999}',
    b'{"prompt": "hi", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b"[1]",
]


@pytest.mark.parametrize("case", range(len(BYTES)))
def test_bad_bytes(server, alive, case):
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=BYTES[case], headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_ten_megabytes_in_chunks(server, alive):
    def chunks():
        for _ in range(10):
            yield b" " * 1_000_000

    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=chunks(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


def raw_exchange(server, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        try:
            connection.sendall(data)
            return connection.recv(65536)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nbig: " + b"a" * 100_000 + b"\r\n\r\n", b" 431 "),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", b" 431 "),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b" 4"),  # 431 or 400, as its pieces arrive
        (b"\x00\x01\x02 nonsense\r\n\r\n", b" 400 "),
    ],
)
def test_bad_http(server, alive, data, status):
    answer = raw_exchange(server, data)
    assert answer == b"" or status in answer.split(b"\r\n")[0]


def test_unknown_routes_and_methods(server, alive):
    assert server.http.get("/v1/nothing").status_code == 404
    assert server.http.get("/v1/completions").status_code == 405
    assert server.http.delete("/metrics").status_code == 405


def test_max_tokens_to_the_last_token(server, alive):
    """One beyond what fits is refused, naming the limit; exactly what fits is taken."""
    limit = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    prompt = [1000 + index % 100 for index in range(limit - 2)]
    response = server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert str(limit) in response.json()["error"]["message"]
