"""Anthropic's messages route, read by Anthropic's own client: blocks, events, stops, forms of requests."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest

PATH = "/v1/messages"
HI = {"model": "double", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno ☀️"}}\n</tool_call>'


@pytest.fixture
def hermes(engine):
    engine.tokenizer.chat_template = "system user assistant enable_thinking <think> <tool_call>"
    engine.max_model_len = 3000
    return engine


@pytest.fixture
def sdk(client):
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=client.app), base_url="http://test")
    return anthropic.AsyncAnthropic(api_key="key", base_url="http://test", http_client=http, max_retries=0)


@pytest.fixture
def rendered(hermes):
    """What the chat template was given: (messages, variables)."""
    seen: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
    inner = hermes.tokenizer.render_chat
    hermes.tokenizer.render_chat = lambda turns, **more: seen.append((turns, more)) or inner(turns, **more)
    return seen


async def both(sdk, **more):
    """The whole message and what the client joins of the stream, which must be the same but for ids."""
    whole = await sdk.messages.create(**HI | more)
    async with sdk.messages.stream(**HI | more) as stream:
        kinds = [event.type async for event in stream]
        joined = await stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert [without_ids(block) for block in joined.content] == [without_ids(block) for block in whole.content]
    assert (joined.stop_reason, joined.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert joined.usage.output_tokens == whole.usage.output_tokens
    assert joined.usage.input_tokens == whole.usage.input_tokens
    return whole


def without_ids(block):
    shown = block.to_dict()
    return {key: value for key, value in shown.items() if key not in ("id", "partial_json", "parsed_output")}


async def raw_events(client, body):
    text = (await client.post(PATH, json=body | {"stream": True})).text
    events = []
    for frame in text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def test_text(sdk, engine):
    message = await both(sdk)
    [block] = message.content
    assert block.text == engine.script
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    prompt = engine.seen[0][0]
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(prompt)
    assert message.usage.cache_read_input_tokens == 2
    assert message.usage.output_tokens == len(engine.script.encode()) + 1


async def test_thinking_text_and_calls_are_blocks_in_order(sdk, hermes):
    hermes.script = f"<think>\nHm.\n</think>\n\nBefore.\n{CALL}\n\nBetween.\n{CALL}\nAfter."
    message = await both(sdk, tools=[WEATHER], max_tokens=500)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "text", "tool_use", "text"]
    texts = [block.text for block in message.content if block.type == "text"]
    assert texts == ["Before.", "Between.", "After."]
    assert message.content[0].thinking == "Hm."
    assert message.content[2].input == {"city": "Brno ☀️"}
    assert message.stop_reason == "tool_use"


async def test_events_open_and_close_each_block_in_turn(client, hermes):
    hermes.script = f"<think>Hm.</think>{CALL}\n{CALL}"
    events = await raw_events(client, HI | {"tools": [WEATHER], "max_tokens": 500})
    open_block, seen = None, []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                seen.append((open_block, event["content_block"]["type"]))
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert seen == [(0, "thinking"), (1, "tool_use"), (2, "tool_use")]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] > 0


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [({}, "end_turn", None), ({"max_tokens": 3}, "max_tokens", None)],
)
async def test_why_it_stopped(sdk, engine, more, reason, sequence):
    message = await both(sdk, **more)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


async def test_a_stop_sequence_is_named(sdk, engine, monkeypatch):
    inner = engine._deltas

    def stopped(prompt, params, request_id):
        import msgspec

        assert params.stop == ("4",)
        deltas = inner(prompt, params, request_id)
        return [*deltas[:-1], msgspec.structs.replace(deltas[-1], finish_reason="stop", stop_reason="4")]

    monkeypatch.setattr(engine, "_deltas", stopped)
    message = await both(sdk, stop_sequences=["4"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "4")


async def test_a_call_cut_by_the_limit(client, hermes):
    hermes.script = CALL
    response = await client.post(PATH, json=HI | {"tools": [WEATHER], "max_tokens": 62})
    assert response.status_code == 200
    message = response.json()
    assert message["stop_reason"] == "max_tokens"
    [block] = message["content"]
    assert block["input"] == {}
    assert block["partial_json"].startswith('{"city"')


async def test_a_last_turn_of_the_assistant_is_continued(client, engine):
    turns = [{"role": "user", "content": "even numbers"}, {"role": "assistant", "content": "2, 4,"}]
    assert (await client.post(PATH, json=HI | {"messages": turns})).status_code == 200
    assert bytes(engine.seen[0][0]) == b"[user]even numbers\n[assistant]2, 4,"
    turns[-1]["content"] = "2, 4, "
    response = await client.post(PATH, json=HI | {"messages": turns})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_forms_that_agents_send(sdk, rendered):
    cached = {"type": "ephemeral"}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Look.", "cache_control": cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Brno"}},
                {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "No city"}],
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    await sdk.messages.create(
        **HI
        | {
            "messages": turns,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": cached}],
            "tools": [WEATHER | {"cache_control": cached}],
            "tool_choice": {"type": "auto"},
            "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "extra_body": {"some_beta": True},
        }
    )
    seen, variables = rendered[0]
    assert [turn["role"] for turn in seen] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert seen[0]["content"] == "Be brief."
    assert (seen[2]["content"], seen[2]["reasoning_content"]) == ("I look.", "Hm.")
    assert [call["function"]["arguments"] for call in seen[2]["tool_calls"]] == [{"city": "Brno"}, {}]
    assert [(turn["content"], turn["tool_call_id"]) for turn in seen[3:5]] == [
        ("Sunny", "t1"),
        ("No city", "t2"),
    ]
    assert variables["enable_thinking"] is True
    assert variables["tools"][0]["function"]["parameters"] == WEATHER["input_schema"]


async def test_thinking_is_off_unless_asked_for(sdk, rendered):
    await sdk.messages.create(**HI)
    await sdk.messages.create(**HI | {"thinking": {"type": "disabled"}})
    assert [variables["enable_thinking"] for _, variables in rendered] == [False, False]


async def test_count_tokens(sdk, engine):
    count = await sdk.messages.count_tokens(model="double", messages=HI["messages"])
    await sdk.messages.create(**HI)
    assert count.input_tokens == len(engine.seen[0][0])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "get_weather"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "other"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
    ],
)
async def test_bad_requests_have_anthropics_shape(client, hermes, change, part):
    body = {key: value for key, value in (HI | change).items() if value is not None}
    response = await client.post(PATH, json=body)
    assert response.status_code == 400
    answer = response.json()
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert part in answer["error"]["message"]


async def test_other_errors_have_anthropics_shape(make_client, engine):
    client = make_client(api_key=("secret",))
    answer = await client.post(PATH, json=HI)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    with_key = {"x-api-key": "secret"}
    answer = await client.post(PATH, json=HI | {"model": "other"}, headers=with_key)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert (await client.post(PATH, json=HI, headers=with_key)).status_code == 200
    assert (await client.post(PATH, json=HI, headers={"x-api-key": "wrong"})).status_code == 401
    starting = make_client(start=False)
    answer = await starting.post(PATH, json=HI)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


async def test_an_error_in_a_stream_is_an_event(client, engine):
    from llm_engine.errors import RequestFailed

    engine.error, engine.error_after = RequestFailed("broken"), 3
    events = await raw_events(client, HI)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert "message_stop" not in {event["type"] for event in events}


async def test_ignored_fields_are_named(client, engine):
    response = await client.post(PATH, json=HI | {"odd": 1, "metadata": {"user_id": "u"}})
    assert response.headers["x-ignored-fields"] == "odd"
