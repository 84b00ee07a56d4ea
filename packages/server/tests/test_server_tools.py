"""Tools and reasoning on the chat route: what the model sees, what the client gets, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno ☀️"}}\n</tool_call>'


@pytest.fixture
def hermes(engine):
    """The double as a model that thinks and calls."""
    engine.tokenizer.chat_template = "system user assistant <think> <tool_call>"
    engine.max_model_len = 2000
    return engine


def events_of(text: str) -> list[dict[str, Any]]:
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def joined(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that the chunks of a choice make up, as a client joins them."""
    message: dict[str, Any] = {
        "content": "",
        "reasoning_content": "",
        "tool_calls": [],
        "finish_reason": None,
    }
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({key: part[key] for key in ("id", "type", "function")})
                else:
                    message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"][
                        "arguments"
                    ]
            message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


async def both(client, body):
    """The whole answer's choice and the joined stream, which must tell the same."""
    whole = (await client.post(PATH, json=body)).json()
    ChatCompletion.model_validate(whole, strict=True)
    choice = whole["choices"][0]
    message = choice["message"]
    stream = joined(events_of((await client.post(PATH, json=body | {"stream": True})).text))
    assert stream["content"] == (message["content"] or "")
    assert stream["reasoning_content"] == message.get("reasoning_content", "")
    assert stream["finish_reason"] == choice["finish_reason"]
    plain = [call["function"] for call in message.get("tool_calls", [])]
    assert [call["function"] for call in stream["tool_calls"]] == plain
    return choice


async def test_a_call(client, hermes):
    hermes.script = f"<think>\nHm.\n</think>\n\nLet me look.\n{CALL}\n{CALL}"
    choice = await both(client, CHAT | {"tools": [WEATHER]})
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    assert choice["message"]["reasoning_content"] == "Hm."
    calls = choice["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Brno ☀️"}] * 2
    assert len({call["id"] for call in calls}) == 2
    assert all(call["type"] == "function" for call in calls)


async def test_the_template_sees_the_tools(client, hermes):
    seen = []
    inner = hermes.tokenizer.render_chat
    hermes.tokenizer.render_chat = lambda messages, **more: seen.append(more) or inner(messages, **more)
    for choice in ("auto", "none"):
        await client.post(PATH, json=CHAT | {"tools": [WEATHER], "tool_choice": choice})
    assert seen[0]["tools"] == [WEATHER]
    assert "tools" not in seen[1]


async def test_no_text_beside_a_call_is_null(client, hermes):
    hermes.script = CALL
    choice = await both(client, CHAT | {"tools": [WEATHER]})
    assert choice["message"]["content"] is None
    assert "reasoning_content" not in choice["message"]


async def test_one_call_where_no_others_are_wanted(client, hermes):
    hermes.script = f"{CALL}\n{CALL}"
    choice = await both(client, CHAT | {"tools": [WEATHER], "parallel_tool_calls": False})
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "more", [{}, {"tools": []}, {"tool_choice": "none"}, {"tools": [WEATHER], "tool_choice": "none"}]
)
async def test_without_tools_a_call_is_text(client, hermes, more):
    hermes.script = CALL
    choice = await both(client, CHAT | more)
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


async def test_no_call_ends_as_usual(client, hermes):
    hermes.script = "Sunny."
    choice = await both(client, CHAT | {"tools": [WEATHER]})
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Sunny.")


async def test_thinking_cut_by_the_limit_stays_thinking(client, hermes):
    hermes.script = "<think>\nHm, let me think.\n</think>\nYes."
    choice = await both(client, CHAT | {"max_tokens": 14})
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == "Hm, le"
    assert choice["message"]["content"] == ""


async def test_a_call_cut_by_the_limit(client, hermes):
    hermes.script = CALL
    choice = await both(client, CHAT | {"tools": [WEATHER], "max_tokens": 60})
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


async def test_logprobs_cover_every_token(client, hermes):
    hermes.script = f"<think>Hm.</think>Look. {CALL}"
    body = CHAT | {"tools": [WEATHER], "logprobs": True}
    whole = (await client.post(PATH, json=body)).json()["choices"][0]
    events = events_of((await client.post(PATH, json=body | {"stream": True})).text)
    streamed = [
        entry
        for event in events
        for choice in event["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed == whole["logprobs"]["content"]
    assert len(streamed) == len(hermes.script.encode()) + 1


async def test_choices_are_read_apart(client, hermes):
    hermes.script = f"<think>Hm.</think>{CALL}"
    whole = (await client.post(PATH, json=CHAT | {"tools": [WEATHER], "n": 3})).json()
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in whole["choices"]}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, None),
        ({"tools": [WEATHER] * 500}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "other", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "with spaces"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "n" * 300}}]}, "tools[0].function.name"),
    ],
)
async def test_bad_tools_are_refused_by_name(client, hermes, more, param):
    response = await client.post(PATH, json=CHAT | more)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"]
    if param is not None:
        assert error["param"].startswith(param)


@pytest.mark.parametrize(
    "parameters",
    [
        "x",
        {"type": 5},
        {"type": "something"},
        {"properties": []},
        {"properties": {"a": {"type": "string", "pattern": "\\d++["}}},
        {"properties": {"a": 5}},
        {"required": "a"},
        {"enum": "a"},
        {"anyOf": {}},
        {"items": {"type": "text"}},
    ],
)
async def test_broken_schemas_are_refused(client, hermes, parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    response = await client.post(PATH, json=CHAT | {"tools": [tool]})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tools[0].function.parameters")


async def test_a_model_without_a_form_of_calls_refuses_tools(client, engine):
    response = await client.post(PATH, json=CHAT | {"tools": [WEATHER]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


async def test_tool_history_is_rendered(client, hermes):
    seen = []
    inner = hermes.tokenizer.render_chat
    hermes.tokenizer.render_chat = lambda messages, **more: seen.append(messages) or inner(messages, **more)
    function = {"name": "get_weather", "arguments": {"city": "Brno"}}
    as_text = function | {"arguments": '{"city": "Brno"}'}
    for given in (function, as_text):
        call = {"id": "c1", "type": "function", "function": given, "extra": 1}
        messages = [
            *CHAT["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Sunny"}]},
        ]
        assert (await client.post(PATH, json={"messages": messages, "tools": [WEATHER]})).status_code == 200
    assert seen[0] == seen[1]
    assert seen[0][1]["tool_calls"][0]["function"] == function
    assert seen[0][1]["reasoning_content"] == "Hm."
    assert seen[0][2]["content"] == "Sunny"
