"""OpenAI's responses, read by OpenAI's client: items, events, kept state, work in the background."""
# ruff: noqa: ASYNC110 -- what is waited for is on the other side of a client

from __future__ import annotations

import asyncio
import json

import httpx2
import openai
import pytest
from llm_engine.errors import RequestFailed

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno ☀️"}}\n</tool_call>'


@pytest.fixture
def hermes(engine):
    engine.tokenizer.chat_template = "system user assistant enable_thinking <think> <tool_call>"
    engine.max_model_len = 3000
    return engine


def sdk_of(client, key="key"):
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=client.app), base_url="http://test")
    return openai.AsyncOpenAI(api_key=key, base_url="http://test/v1", http_client=http, max_retries=0)


@pytest.fixture
def sdk(client):
    return sdk_of(client)


def plain(item):
    """An item without its made-up ids."""
    return {key: value for key, value in item.to_dict().items() if key not in ("id", "call_id")}


async def both(sdk, **body):
    """The whole response, and the one that the stream ends with, which must be the same but for ids."""
    whole = await sdk.responses.create(**body)
    events = [event async for event in await sdk.responses.create(**body, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    ended = events[-1].response
    assert events[-1].type == f"response.{whole.status}"
    assert [plain(item) for item in ended.output] == [plain(item) for item in whole.output]
    assert ended.usage == whole.usage
    check_events(events, ended)
    return whole


def check_events(events, ended):
    """Items open and close in turn, and their deltas join to what they end with."""
    texts: dict[str, str] = {}
    open_item = None
    for event in events[2:-1]:
        if event.type == "response.output_item.added":
            assert open_item is None
            open_item = event.item.id
            assert event.output_index == len(texts)
            texts[open_item] = ""
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item
            assert event.item == ended.output[event.output_index]
            open_item = None
        else:
            assert event.item_id == open_item
            if event.type.endswith(".delta"):
                texts[open_item] += event.delta
    for item in ended.output:
        found = item.arguments if item.type == "function_call" else item.content[0].text
        assert texts[item.id] == found


async def test_text(sdk, engine):
    response = await both(sdk, model="double", input="hi", instructions="Be brief.", metadata={"a": "b"})
    assert response.output_text == engine.script
    assert response.status == "completed"
    assert response.metadata == {"a": "b"}
    prompt = engine.seen[0][0]
    assert bytes(prompt) == b"[system]Be brief.\n[user]hi\n[assistant]"
    assert response.usage.input_tokens == len(prompt)
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert response.usage.output_tokens == len(engine.script.encode()) + 1


async def test_thinking_text_and_calls_are_items(sdk, hermes):
    hermes.script = f"<think>\nHm.\n</think>\n\nBefore.\n{CALL}\n\nBetween.\n{CALL}"
    response = await both(sdk, model="double", input="hi", tools=[WEATHER])
    kinds = ["reasoning", "message", "function_call", "message", "function_call"]
    assert [item.type for item in response.output] == kinds
    assert response.output[0].content[0].text == "Hm."
    assert [response.output[i].content[0].text for i in (1, 3)] == ["Before.", "Between."]
    assert json.loads(response.output[2].arguments) == {"city": "Brno ☀️"}
    assert response.output[2].call_id != response.output[4].call_id
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < 20


async def test_the_limit_makes_it_incomplete(sdk, engine):
    response = await both(sdk, model="double", input="hi", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


async def test_logprobs_of_the_text(sdk, engine):
    response = await both(
        sdk, model="double", input="hi", top_logprobs=2, include=["message.output_text.logprobs"]
    )
    entries = response.output[0].content[0].logprobs
    assert bytes(byte for entry in entries for byte in entry.bytes).decode().startswith(engine.script)
    assert len(entries[0].top_logprobs) == 2


async def test_a_response_is_continued(sdk, hermes):
    hermes.script = f"<think>Hm.</think>{CALL}"
    first = await sdk.responses.create(model="double", input="weather?", tools=[WEATHER], instructions="A")
    call = first.output[1]
    hermes.script = "Sunny."
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "25 °C"}
    second = await sdk.responses.create(
        model="double", input=[result], previous_response_id=first.id, instructions="B", tools=[WEATHER]
    )
    prompt = bytes(hermes.seen[-1][0]).decode()
    assert prompt == "[system]B\n[user]weather?\n[assistant]\n[tool]25 °C\n[assistant]"
    assert second.previous_response_id == first.id
    read = await sdk.responses.retrieve(second.id)
    assert read == second
    items = await sdk.responses.input_items.list(second.id)
    assert [item.type for item in items.data] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


async def test_replayed_items_are_one_turn(sdk, hermes):
    seen = []
    inner = hermes.tokenizer.render_chat
    hermes.tokenizer.render_chat = lambda turns, **more: seen.append((turns, more)) or inner(turns, **more)
    await sdk.responses.create(
        model="double",
        reasoning={"effort": "none"},
        tools=[WEATHER],
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "get_weather",
                "arguments": '{"city": "Brno"}',
            },
            {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Sunny"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "None"}],
            },
        ],
    )
    turns, variables = seen[0]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "tool", "tool"]
    assert (turns[2]["content"], turns[2]["reasoning_content"]) == ("I look.", "Hm.")
    assert [call["id"] for call in turns[2]["tool_calls"]] == ["c1", "c2"]
    assert [turn["content"] for turn in turns[3:]] == ["Sunny", "None"]
    assert variables["enable_thinking"] is False


async def until_ended(sdk, response_id):
    async with asyncio.timeout(10):
        while (found := await sdk.responses.retrieve(response_id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
    return found


async def test_in_the_background(sdk, engine):
    begun = await sdk.responses.create(model="double", input="hi", background=True)
    assert begun.status == "queued"
    ended = await until_ended(sdk, begun.id)
    assert (ended.status, ended.output_text) == ("completed", engine.script)
    assert (await sdk.responses.cancel(begun.id)).status == "completed"


async def test_cancelling_frees_the_work(sdk, engine):
    engine.gate = asyncio.Event()
    begun = await sdk.responses.create(model="double", input="hi", background=True)
    while not engine.live:
        await asyncio.sleep(0.01)
    assert (await sdk.responses.cancel(begun.id)).status == "cancelled"
    assert (engine.live, engine.aborted) == (0, 1)
    assert (await sdk.responses.retrieve(begun.id)).status == "cancelled"


async def test_a_failure_in_the_background_is_told(sdk, engine):
    engine.error = RequestFailed("broken")
    begun = await sdk.responses.create(model="double", input="hi", background=True)
    ended = await until_ended(sdk, begun.id)
    assert ended.status == "failed"
    assert "broken" in ended.error.message


async def test_a_failure_in_a_stream_is_its_last_event(sdk, engine):
    engine.error, engine.error_after = RequestFailed("broken"), 3
    events = [event async for event in await sdk.responses.create(model="double", input="hi", stream=True)]
    assert events[-1].type == "response.failed"
    assert (await sdk.responses.retrieve(events[-1].response.id)).status == "failed"


async def test_deleting(sdk, engine):
    made = await sdk.responses.create(model="double", input="hi")
    await sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)


async def test_nothing_is_kept_without_store(sdk, client, engine):
    made = await sdk.responses.create(model="double", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)
    assert len(client.app.state.context.responses.store) == 0


async def test_the_store_is_bounded(make_client, engine):
    client = make_client(max_stored_responses=3)
    sdk = sdk_of(client)
    made = [(await sdk.responses.create(model="double", input="hi")).id for _ in range(5)]
    store = client.app.state.context.responses.store
    assert len(store) == 3
    for response_id in made[:2]:
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(response_id)
    for response_id in made[2:]:
        store.remove(response_id)
    assert store.num_bytes == 0
    small = make_client(max_stored_response_bytes=100)
    await sdk_of(small).responses.create(model="double", input="hi")
    assert len(small.app.state.context.responses.store) == 0


async def test_a_key_sees_its_own_responses_only(make_client, engine):
    client = make_client(api_key=("one", "two"))
    made = await sdk_of(client, "one").responses.create(model="double", input="hi")
    assert (await sdk_of(client, "one").responses.retrieve(made.id)).id == made.id
    with pytest.raises(openai.NotFoundError):
        await sdk_of(client, "two").responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk_of(client, "two").responses.create(model="double", input="x", previous_response_id=made.id)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"temperature": -1}, "temperature"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(client, hermes, change, param):
    body = {"model": "double", "input": "hi"} | change
    response = await client.post(PATH, json={key: value for key, value in body.items() if value is not None})
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"].startswith(param)


async def test_cancelling_a_finished_foreground_response_is_refused(sdk, engine):
    made = await sdk.responses.create(model="double", input="hi")
    with pytest.raises(openai.BadRequestError):
        await sdk.responses.cancel(made.id)
