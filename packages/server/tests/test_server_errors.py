"""Every refusal: status, error JSON, the field named; and the engine saw nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llm_engine.errors import EngineBusy, EngineDead, RequestFailed

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}

BAD_COMPLETIONS = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [260]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
    ({"prompt": [2**70]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": ["ok", "x" * 300, "ok"]}, "prompt[1]"),
    ({"prompt": "x" * 300}, "prompt"),
    ({"prompt": "x" * 200}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 199}, "max_tokens"),
    ({"max_tokens": 100_000_000}, "max_tokens"),
    ({"max_tokens": 10**40}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"min_tokens": 10, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e30}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"stop": [1]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [260]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"logit_bias": {"260": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"AI": -100}}, "logit_bias"),
    ({"logit_bias": {"12.5": 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"prompt_embeds": "x"}, "prompt_embeds"),
    ({"priority": "high"}, "priority"),
    ({"model": 5}, "model"),
]

BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 500}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"store": True}, "store"),
    ({"store": 0}, "store"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
]


async def refused(client: Any, engine: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert engine.seen == []
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("change", "param"), BAD_COMPLETIONS)
async def test_bad_completion(client, engine, change, param, stream):
    base = {} if change == {} else COMPLETION
    body = base | ({} if "stream_options" in change else {"stream": stream}) | change
    error = await refused(client, engine, "/v1/completions", body)
    assert error["param"] == param
    assert param.split("[")[0] in error["message"]


@pytest.mark.parametrize(("change", "param"), BAD_CHATS)
async def test_bad_chat(client, engine, change, param):
    error = await refused(client, engine, "/v1/chat/completions", CHAT | change)
    assert error["param"] == param


async def test_context_length_has_its_code(client, engine):
    error = await refused(client, engine, "/v1/completions", {"prompt": "x" * 300})
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"prompt": "hi",}',
        b'{"prompt": "hi", "temperature": NaN}',
        b'{"prompt": "hi", "temperature": Infinity}',
        b'{"prompt": "hi", "temperature": 1e999}',
        b'{"prompt": "hi", "foo": NaN}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud83d"}',
        b'["prompt"]',
        b"null",
        b'{"prompt": "hi", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
async def test_bad_bytes(client, engine, raw):
    response = await client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert engine.seen == []


async def test_wrong_media_type(client):
    response = await client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415
    compressed = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await client.post("/v1/completions", content=b"{}", headers=compressed)
    assert response.status_code == 415


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_unknown_model(client, engine, path):
    body = {"model": "gpt-9", **COMPLETION, **CHAT}
    if path == "/tokenize":
        del body["prompt"]
    if path == "/detokenize":
        body["tokens"] = [1]
    response = await client.post(path, json=body)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "model"


async def test_unknown_path_and_method(client):
    response = await client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    response = await client.get("/v1/completions")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"


async def test_large_body_declared_and_chunked(make_client, engine):
    client = make_client(max_body_bytes=2048)
    response = await client.post("/v1/completions", json={"prompt": "x" * 4000})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"

    async def chunks():
        for _ in range(10):
            yield b"x" * 1000

    response = await client.post(
        "/v1/completions", content=chunks(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    response = await client.post("/v1/completions", json={"prompt": "x" * 100})
    assert response.status_code == 200


async def test_ten_megabytes_exceed_the_default(client):
    response = await client.post("/v1/completions", json={"prompt": "x" * 10_000_000})
    assert response.status_code == 413


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_refusals_have_a_status_in_streams_too(client, engine, stream):
    body = COMPLETION | {"stream": stream}
    engine.error = EngineBusy(2.3)
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["type"] == "rate_limit_error"
    engine.error = EngineDead("gone")
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 503
    engine.error = RequestFailed("a step failed", "id")
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 500
    assert "a step failed" in response.json()["error"]["message"]
    engine.error = RuntimeError("secret detail")
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 500
    assert "secret" not in response.text
    engine.error = None
    assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
    assert engine.live == 0


async def test_one_refused_prompt_of_several_ends_all(client, engine):
    engine.error = EngineBusy(1.0)
    response = await client.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
    assert response.status_code == 429
    assert engine.live == 0


async def test_error_inside_a_stream(client, engine):
    engine.error, engine.error_after = RequestFailed("a step failed"), 3
    response = await client.post("/v1/completions", json=COMPLETION | {"stream": True})
    assert response.status_code == 200
    frames = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert json.loads(frames[-1])["error"]["code"] == "request_failed"
    assert "[DONE]" not in frames
    assert all("error" not in json.loads(frame) for frame in frames[:-1])


async def test_fields_that_do_no_harm(client, engine):
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "temperature": None,
        "stop": None,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "functions": None,
        "logit_bias": None,
    }
    response = await client.post("/v1/chat/completions", json=CHAT | harmless)
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers


async def test_unknown_fields_are_named_and_counted(client):
    messages = [{"role": "user", "content": "hi", "mood": "good"}]
    body = {"messages": messages, "foo": 1, "b\nad": 2, "user": "u"}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == "foo, ?, messages.mood"
    metrics = (await client.get("/metrics")).text
    assert 'llm_stack_ignored_fields_total{route="/v1/chat/completions"} 3.0' in metrics
