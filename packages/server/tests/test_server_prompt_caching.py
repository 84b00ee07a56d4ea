"""`cache_control` and salts: where marks fall, what usage tells, and who shares nothing."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings

PATH = "/v1/messages"
KEYS = ("team-a key-a", "team-b key-b")
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def text(text, mark=None):
    return {"type": "text", "text": text, **(mark or {})}


def body(*turns, **more):
    roles = ("user", "assistant")
    messages = [
        {"role": roles[index % 2], "content": turn if isinstance(turn, list) else [turn]}
        for index, turn in enumerate(turns)
    ]
    return {"model": "double", "max_tokens": 8, "messages": messages, **more}


@pytest.fixture
def keeping(engine):
    """The engine keeps whole blocks of 16, as far as `kept` allows, and found `cached` tokens."""
    engine.max_model_len = 3000
    engine.kept, engine.cached = 10**9, 0
    inner = engine._deltas

    def deltas(prompt, params, request_id):
        pins = engine.cache_uses[-1][2]
        pinned = tuple(0 if pin.num_tokens > engine.kept else pin.num_tokens // 16 * 16 for pin in pins)
        first, *others = inner(prompt, params, request_id)
        return [
            msgspec.structs.replace(first, pinned_tokens=pinned, num_cached_tokens=engine.cached),
            *others,
        ]

    engine._deltas = deltas
    return engine


def kept_texts(engine):
    """The beginnings that were asked for, as text, with their seconds."""
    prompt = bytes(engine.seen[-1][0]).decode()
    return [(prompt[: pin.num_tokens], pin.ttl_s) for pin in engine.cache_uses[-1][2]]


async def usage(client, request):
    response = await client.post(PATH, json=request)
    assert response.status_code == 200, response.text
    return response.json()["usage"]


async def test_a_mark_in_a_message_keeps_what_stands_before_it(client, keeping):
    request = body([text("A long document.", MARK), text("What does it say?")])
    shown = await usage(client, request)
    [(kept, ttl_s)] = kept_texts(keeping)
    assert kept.rstrip().endswith("A long document.")
    assert ttl_s == 300.0
    prompt = keeping.seen[-1][0]
    created = len(kept.encode()) // 16 * 16
    assert shown["cache_creation_input_tokens"] == created
    assert shown["cache_creation"] == {"ephemeral_5m_input_tokens": created, "ephemeral_1h_input_tokens": 0}
    assert shown["input_tokens"] == len(prompt) - created


async def test_a_mark_on_the_system_prompt_keeps_no_turn(client, keeping):
    await usage(client, body(text("Hello there"), system=[text("You are brief and kind.", HOUR)]))
    [(kept, ttl_s)] = kept_texts(keeping)
    assert "brief and kind." in kept
    assert "Hello" not in kept
    assert ttl_s == 3600.0


async def test_long_and_short_times_are_told_apart(client, keeping):
    request = body(
        text("A first question, which is long.", MARK),
        text("An answer."),
        text("And another one, long too.", MARK),
        system=[text("A long introduction of sorts.", HOUR)],
    )
    shown = await usage(client, request)
    [(long, long_s), (short, short_s)] = kept_texts(keeping)
    assert (long_s, short_s) == (3600.0, 300.0)
    assert short.startswith(long)
    assert short.rstrip().endswith("long too.")
    hours, minutes = len(long) // 16 * 16, len(short) // 16 * 16
    assert shown["cache_creation"] == {
        "ephemeral_5m_input_tokens": minutes - hours,
        "ephemeral_1h_input_tokens": hours,
    }
    keeping.cached = minutes
    again = await usage(client, request)
    assert (again["cache_read_input_tokens"], again["cache_creation_input_tokens"]) == (minutes, 0)
    assert again["input_tokens"] == len(keeping.seen[-1][0]) - minutes


async def test_what_was_not_kept_is_not_told_as_kept(client, keeping):
    keeping.kept = 0
    shown = await usage(client, body(text("A long document of some length.", MARK)))
    assert shown["cache_creation_input_tokens"] == 0
    assert shown["input_tokens"] == len(keeping.seen[-1][0])


async def test_the_whole_body_may_be_marked(client, keeping):
    await usage(client, body(text("one"), text("two"), text("three and more"), **MARK))
    [(kept, _)] = kept_texts(keeping)
    assert kept.rstrip().endswith("three and more")


async def test_streams_tell_the_same(client, keeping):
    request = body(text("A long document of some length.", MARK))
    whole = await usage(client, request)
    streamed = (await client.post(PATH, json=request | {"stream": True})).text
    start = next(line for line in streamed.splitlines() if '"message_start"' in line and "data" in line)
    shown = msgspec.json.decode(start.removeprefix("data: "))["message"]["usage"]
    assert whole["cache_creation_input_tokens"] > 0
    assert {**shown, "output_tokens": 0} == {**whole, "output_tokens": 0}


@pytest.mark.parametrize("path", [PATH, PATH + "/count_tokens"])
@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        (body([text(str(place), MARK) for place in range(5)]), "messages[0].content[4].cache_control"),
        (body(text("a", MARK), system=[text(str(place), MARK) for place in range(4)]), "messages[0]"),
        (body(text("a", HOUR), system=[text("b", MARK)]), "messages[0].content[0].cache_control.ttl"),
        (body(text("a", {"cache_control": {"type": "ephemeral", "ttl": "2h"}})), "cache_control.ttl"),
        (body(text("a", {"cache_control": {"type": "forever"}})), "cache_control.type"),
        (body(text("", MARK)), "messages[0].content[0].cache_control"),
        (
            body(text("a"), {"type": "thinking", "thinking": "b", **MARK}, text("c")),
            "messages[1].content[0].cache_control",
        ),
        (body(text("a"), cache_control={"type": "ephemeral", "ttl": 300}), "cache_control.ttl"),
    ],
)
async def test_marks_that_may_not_be_are_refused_by_name(client, keeping, path, request_body, param):
    response = await client.post(path, json=request_body)
    assert response.status_code == 400, response.text
    assert param in response.json()["error"]["message"]
    assert keeping.seen == []


async def test_tools_and_results_may_be_marked(client, keeping):
    keeping.tokenizer.chat_template = "system user assistant <tool_call>"
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("found", MARK)]}
    use = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    await usage(client, body(text("look"), use, [result, text("and now?")], tools=[{**TOOL, **MARK}]))
    [(kept, _)] = kept_texts(keeping)
    assert "found" in kept
    assert "and now?" not in kept


# Salts


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_may_name_a_salt(client, engine, path):
    for salt in (None, "a", "b", "a"):
        more = {} if salt is None else {"cache_salt": salt}
        assert (await client.post(path, json=BODIES[path] | more)).status_code == 200
    salts = [salt for _, salt, _ in engine.cache_uses]
    assert salts[0] is None
    assert salts[1] == salts[3] != salts[2]


def client_of(engine, key, **settings):
    app = create_app(ServerSettings(api_key=KEYS, **settings), engine)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://test",
        headers={"authorization": f"Bearer {key}"},
    )


@pytest.mark.parametrize("path", BODIES)
async def test_keys_that_are_apart_share_nothing(engine, path):
    for key in ("key-a", "key-b"):
        async with client_of(engine, key, isolate_cache_by_key=True) as client:
            for more in ({}, {"cache_salt": "x"}, {}):
                assert (await client.post(path, json=BODIES[path] | more)).status_code == 200
    a, b = engine.cache_uses[:3], engine.cache_uses[3:]
    salts_a, salts_b = {salt for _, salt, _ in a}, {salt for _, salt, _ in b}
    assert None not in salts_a | salts_b
    assert not salts_a & salts_b
    assert a[0] == a[2] != a[1]
    assert a[0][0] != b[0][0]  # the tenant


async def test_keys_share_by_default(engine):
    for key in ("key-a", "key-b"):
        async with client_of(engine, key) as client:
            await client.post("/v1/completions", json={"prompt": "hi"})
    assert [salt for _, salt, _ in engine.cache_uses] == [None, None]


def test_isolation_needs_keys():
    with pytest.raises(StartupError, match="isolate_cache_by_key"):
        ServerSettings(isolate_cache_by_key=True)
