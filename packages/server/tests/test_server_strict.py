"""Fields that no one here knows: named at every depth, refused where the server is strict."""

from __future__ import annotations

import grpc
import pytest
from llm_stack_server.grpc_api.messages import SERVICE, message_class
from server_grpc_client import fault_of, serving

MESSAGES = [{"role": "user", "content": "hi"}]
SAYS = {"model": "double", "max_tokens": 5, "messages": MESSAGES}
ROUTES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": SAYS,
    "/v1/messages/count_tokens": {"model": "double", "messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
TOOL = {"type": "function", "function": {"name": "f"}}
# Route, body, place in it, name in the header.
NESTED = [
    ("/v1/chat/completions", {"messages": [*MESSAGES, MESSAGES[0] | {"mood": 1}]}, "messages[1].mood"),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "user", "content": [{"type": "text", "text": "hi", "cache": 1}]},
            ]
        },
        "messages[1].content[0].cache",
    ),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "tool_choice": "none",
            "tools": [TOOL, TOOL | {"function": {"name": "g", "odd": 1}}],
        },
        "tools[1].function.odd",
    ),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "stream": True, "stream_options": {"often": True}},
        "stream_options.often",
    ),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "response_format": {"type": "text", "odd": 1}},
        "response_format.odd",
    ),
    (
        "/v1/messages",
        SAYS | {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "odd": 1}]}]},
        "messages[0].content[0].odd",
    ),
    ("/v1/messages", SAYS | {"thinking": {"type": "disabled", "odd": 1}}, "thinking.odd"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi", "odd": 1}]}]},
        "input[0].content[0].odd",
    ),
    ("/v1/responses", {"input": "hi", "text": {"odd": 1}}, "text.odd"),
    ("/tokenize", {"messages": [MESSAGES[0] | {"mood": 1}]}, "messages[0].mood"),
]
# What clients send back from our answers, and what goes to a back end whole.
REPLAYED = [
    (
        "/v1/chat/completions",
        {
            "messages": [
                *MESSAGES,
                {
                    "role": "assistant",
                    "content": "hi",
                    "refusal": None,
                    "annotations": [],
                    "audio": None,
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f"},
                        }
                    ],
                },
                {"role": "user", "content": "go on"},
            ]
        },
    ),
    (
        "/v1/messages",
        SAYS
        | {
            "messages": [
                *MESSAGES,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "hi", "citations": None},
                    ],
                },
                *MESSAGES,
            ]
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "hi"},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
                },
                {"role": "user", "content": "hi"},
            ]
        },
    ),
]


@pytest.fixture
def strict(make_client):
    return make_client(strict=True)


@pytest.mark.parametrize("path", ROUTES)
async def test_strict_refuses_unknown_fields(client, strict, engine, path):
    body = ROUTES[path] | {"foo": 1, "b\nad": 2, "absent": None, "dotted.name": 3}
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "foo, ?, dotted.name"
    seen = len(engine.seen)
    answer = await strict.post(path, json=body)
    assert answer.status_code == 400
    assert "fields foo, ?, dotted.name, which" in answer.json()["error"]["message"]
    if not path.startswith("/v1/messages"):  # Anthropic's errors name no field apart
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
            "foo",
            "unknown_parameter",
        )
    assert len(engine.seen) == seen
    answer = await strict.post(path, json=ROUTES[path])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body", "place"), NESTED)
async def test_unknown_fields_are_found_at_every_depth(client, strict, path, body, place):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == place.replace("[0]", "").replace("[1]", "")
    answer = await strict.post(path, json=body)
    assert answer.status_code == 400
    assert f"unknown field {place}," in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "body"), REPLAYED)
async def test_what_was_answered_may_be_sent_back(client, strict, path, body):
    for server in (client, strict):
        answer = await server.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "x-ignored-fields" not in answer.headers


async def test_a_name_that_is_nearly_right_is_told(strict):
    answer = await strict.post("/v1/completions", json={"prompt": "hi", "temprature": 0.5})
    assert answer.json()["error"]["message"].endswith("did you mean temperature?")
    answer = await strict.post("/v1/completions", json={"prompt": "hi", "zzz": 0.5})
    assert "did you mean" not in answer.json()["error"]["message"]


async def test_many_names_are_cut_short(client, strict):
    body = ROUTES["/v1/completions"] | {f"f{number}": 1 for number in range(1000)}
    assert len((await client.post("/v1/completions", json=body)).headers["x-ignored-fields"]) < 200
    message = (await strict.post("/v1/completions", json=body)).json()["error"]["message"]
    assert "f31 and 968 more" in message


async def test_fields_that_are_known_and_harmless_stay_so(strict):
    body = ROUTES["/v1/chat/completions"] | {"user": "u", "metadata": {"any": "thing"}, "store": False}
    body["chat_template_kwargs"] = {"free": 1}
    body["tools"] = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x-odd": 1}}}
    ]
    body["tool_choice"] = "none"
    answer = await strict.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("deep", "place"), [(False, "#900"), (True, "messages[0].#900")])
async def test_grpc_refuses_unknown_fields_too(engine, deep, place):
    chat = message_class("TokenizeRequest")(
        messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True
    )
    odd = bytes([0xA0, 0x38, 1])  # field 900, a varint
    (chat.messages[0] if deep else chat).MergeFromString(odd)
    for is_strict in (False, True):
        async with serving(engine, strict=is_strict) as client:
            method = client.channel.unary_unary(
                f"/{SERVICE}/Tokenize",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=message_class("TokenizeResponse").FromString,
            )
            if not is_strict:
                assert (await method(chat, timeout=10)).token_ids
                continue
            fault = await fault_of(method(chat, timeout=10))
            assert fault["code"] is grpc.StatusCode.INVALID_ARGUMENT
            assert fault["message"].endswith(place)
            assert (await client.call("Tokenize", "TokenizeResponse", prompt="hi")).token_ids
