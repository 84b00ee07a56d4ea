"""The chat route: shapes, streaming, logprobs, templates, parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


def events_of(text: str) -> list[dict[str, Any]]:
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


async def test_whole_answer(client, engine):
    response = await client.post(PATH, json=CHAT | {"temperature": 0, "seed": 3, "priority": -2})
    answer = ChatCompletion.model_validate(response.json(), strict=True)
    assert answer.choices[0].message.content == engine.script
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "double"
    prompt, params, priority = engine.seen[0]
    assert bytes(prompt) == b"[user]hi\n[assistant]"
    assert (params.temperature, params.seed, params.max_tokens, priority) == (0, 3, None, -2)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(engine.script.encode()) + 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.system_fingerprint.startswith("fp_")


@pytest.mark.parametrize("n", [1, 3])
async def test_joined_stream_equals_the_whole(client, n):
    body = CHAT | {"n": n, "logprobs": True, "top_logprobs": 2, "max_tokens": 9}
    whole = (await client.post(PATH, json=body)).json()
    streamed = await client.post(
        PATH, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_of(streamed.text)
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 9 * n
    assert all(event["usage"] is None for event in events[:-1])
    assert len({event["id"] for event in events}) == 1
    for index in range(n):
        mine = [event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("finish_reason" in choice for choice in mine)
        ends = [choice for choice in mine if choice["finish_reason"] is not None]
        assert ends == [mine[-1]]
        assert mine[-1]["delta"] == {}
        choice = whole["choices"][index]
        assert "".join(part["delta"].get("content", "") for part in mine) == choice["message"]["content"]
        joined = [entry for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert joined == choice["logprobs"]["content"]
        assert ends[0]["finish_reason"] == choice["finish_reason"] == "length"


async def test_logprob_bytes_rebuild_the_text(client, engine):
    engine.script = "ü🌶"
    answer = (await client.post(PATH, json=CHAT | {"logprobs": True, "top_logprobs": 3})).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries[:-1] for byte in entry["bytes"]).decode() == engine.script
    assert entries[0]["token"] == "bytes:\\xc3"
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)


async def test_no_usage_key_unless_asked(client):
    events = events_of((await client.post(PATH, json=CHAT | {"stream": True})).text)
    assert all("usage" not in event for event in events)


async def test_parts_roles_and_flags_reach_the_template(client, engine):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "1, 2,", "refusal": None, "annotations": []},
    ]
    body = {"messages": messages, "continue_final_message": True, "max_tokens": 1}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert bytes(engine.seen[0][0]) == b"[system]be brief\n[user]a\nb\n[assistant]1, 2,"


async def test_model_without_template(client, engine):
    engine.tokenizer.chat_template = None
    response = await client.post(PATH, json=CHAT)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "no_chat_template"


async def test_request_ids(client):
    response = await client.post(PATH, json=CHAT, headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    response = await client.post(PATH, json=CHAT, headers={"x-request-id": "a b"})
    assert response.headers["x-request-id"] != "a b"
