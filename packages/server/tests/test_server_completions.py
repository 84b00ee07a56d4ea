"""The completions route: prompts in every spelling, echo, logprobs, streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion

PATH = "/v1/completions"


def events_of(text: str) -> list[dict[str, Any]]:
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [("hi", [b"hi"]), (["a", "b"], [b"a", b"b"]), ([104, 105], [b"hi"]), ([[97], [98, 99]], [b"a", b"bc"])],
)
async def test_prompt_spellings(client, engine, prompt, token_ids):
    response = await client.post(PATH, json={"prompt": prompt, "n": 2})
    answer = Completion.model_validate(response.json(), strict=True)
    assert sorted(bytes(seen[0]) for seen in engine.seen) == token_ids
    assert [choice.index for choice in answer.choices] == list(range(2 * len(token_ids)))
    assert all(choice.text == "Grüße, welcome" for choice in answer.choices)
    assert answer.usage.prompt_tokens == sum(map(len, token_ids))
    assert answer.usage.completion_tokens == 16 * 2 * len(token_ids)  # OpenAI's default limit


async def test_default_limit_shrinks_with_the_context(client, engine):
    assert (await client.post(PATH, json={"prompt": "x" * 195})).status_code == 200
    assert engine.seen[0][1].max_tokens == 5


@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_joined_stream_equals_the_whole(client, logprobs, echo, n):
    body = {"prompt": ["hü", "b"], "n": n, "echo": echo, "logprobs": logprobs, "max_tokens": 6}
    whole = (await client.post(PATH, json=body)).json()
    streamed = await client.post(
        PATH, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    events = events_of(streamed.text)
    assert all(set(event) == set(whole) for event in events)
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [
            event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [entry for part in mine if part["logprobs"] for entry in part["logprobs"][key]]
            assert joined == (choice["logprobs"][key] if logprobs is not None else [])


async def test_echo_with_logprobs(client):
    answer = (
        await client.post(PATH, json={"prompt": "hü", "echo": True, "logprobs": 1, "max_tokens": 4})
    ).json()
    choice = answer["choices"][0]
    assert choice["text"] == "hüGrü"
    lists = choice["logprobs"]
    assert lists["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xbc", "G", "r", "bytes:\\xc3", "bytes:\\xbc"]
    assert lists["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert lists["top_logprobs"][0] is None
    assert lists["text_offset"] == [0, 1, 1, 2, 3, 4, 4]


async def test_scoring_call_generates_nothing(client, engine):
    body = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = (await client.post(PATH, json=body)).json()
    assert answer["choices"][0]["text"] == "abc"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 3
    assert answer["usage"]["completion_tokens"] == 0
    assert engine.seen[0][1].prompt_logprobs == 1


async def test_echo_of_token_ids(client):
    answer = (await client.post(PATH, json={"prompt": [104, 105], "echo": True, "max_tokens": 1})).json()
    assert answer["choices"][0]["text"] == "hiG"


async def test_tokenize_and_detokenize(client):
    body = {"prompt": "hü", "return_token_strs": True}
    answer = (await client.post("/tokenize", json=body)).json()
    assert answer == {
        "count": 3,
        "max_model_len": 200,
        "tokens": [104, 195, 188],
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xbc"],
    }
    answer = (await client.post("/detokenize", json={"tokens": [104, 195, 188]})).json()
    assert answer == {"prompt": "hü"}
    messages = [{"role": "user", "content": "hi"}]
    answer = (await client.post("/tokenize", json={"messages": messages})).json()
    assert bytes(answer["tokens"]) == b"[user]hi\n[assistant]"
    for bad, param in [({}, None), ({"prompt": "a", "messages": messages}, None)]:
        response = await client.post("/tokenize", json=bad)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
    response = await client.post("/detokenize", json={"tokens": [1, 260]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokens[1]"
