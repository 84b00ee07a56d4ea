"""Fault cases of requests: what no route may take, on every route; bytes, fields, media, leaks."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from llm_engine.errors import EngineDead, RequestFailed

ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"model": "double", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages/count_tokens": {"model": "double", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/tokenize": {"messages": [{"role": "user", "content": "hi"}]},
}
GENERATES = [path for path in ROUTES if "token" not in path]
PICKLE = "gASVKAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjA10b3VjaCBjYW5hcnkxlIWUUpQu"


def message_of(response) -> str:
    """The message of an error in either shape."""
    return response.json()["error"]["message"]


# C053, C172, C173, C178, C180: what a caller must not choose, on any route

CHOSEN_BY_CALLER = [
    ("chat_template", "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}"),
    ("prompt_embeds", PICKLE),
    ("input_embeds", [[0.1, 0.2]]),
    ("custom_logit_processor", PICKLE),
    ("logits_processors", [PICKLE]),
    ("mm_processor_kwargs", {"size": {"longest_edge": 10**9}}),
    ("multi_modal_data", {"image": PICKLE}),
    ("multi_modal_uuids", {"image": ["of-another-user"]}),
    ("mm_hashes", ["of-another-user"]),
    ("mm_placeholders", [{"offset": 0, "length": -1}]),
    ("image_data", "http://127.0.0.1/"),
    ("lora_path", "/etc"),
    ("detokenize", False),
    ("bad_words", ["London"]),
    ("cache_salt", ""),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("field", "value"), CHOSEN_BY_CALLER)
async def test_fields_that_a_caller_must_not_choose(client, engine, path, field, value):
    response = await client.post(path, json=ROUTES[path] | {field: value})
    assert response.status_code == 400, response.text
    assert field in message_of(response)
    assert engine.seen == []


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/v1/completions"])
@pytest.mark.parametrize("name", ["chat_template", "messages", "bos_token", "tokenize", "template"])
async def test_a_template_cannot_hide_in_the_variables(client, engine, path, name):
    response = await client.post(path, json=ROUTES[path] | {"chat_template_kwargs": {name: "x"}})
    assert response.status_code == 400, response.text
    assert name in message_of(response)
    assert engine.seen == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
@pytest.mark.parametrize(
    ("field", "value", "harmless"),
    [
        ("n", 2, 1),
        ("logit_bias", {"5": 1}, {}),
        ("stop_token_ids", [5], []),
        ("repetition_penalty", 1.5, 1.0),
        ("min_p", 0.5, 0),
        ("ignore_eos", True, False),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
    ],
)
async def test_sampling_fields_of_chat_are_not_ignored_elsewhere(
    client, engine, path, field, value, harmless
):
    response = await client.post(path, json=ROUTES[path] | {field: value})
    assert response.status_code == 400
    assert field in message_of(response)
    assert engine.seen == []
    for plain in (harmless, None):
        response = await client.post(path, json=ROUTES[path] | {field: plain})
        assert response.status_code == 200, response.text
        assert "x-ignored-fields" not in response.headers


# C112: no picture is fetched


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"])
async def test_no_address_of_a_picture_is_visited(client, engine, path, tmp_path):
    visits = 0

    async def visit(_reader, writer):
        nonlocal visits
        visits += 1
        writer.close()

    listener = await asyncio.start_server(visit, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    local = tmp_path / "canary"
    local.write_text("secret")
    addresses = [f"http://127.0.0.1:{port}/", f"ftp://127.0.0.1:{port}/", f"file://{local}", str(local)]
    try:
        for address in addresses:
            if path == "/v1/messages":
                part = {"type": "image", "source": {"type": "url", "url": address}}
            elif path == "/v1/responses":
                part = {"type": "input_image", "image_url": address}
            else:
                part = {"type": "image_url", "image_url": {"url": address}}
            turn = {"role": "user", "content": [part]}
            field = "input" if path == "/v1/responses" else "messages"
            response = await client.post(path, json=ROUTES[path] | {field: [turn]})
            assert response.status_code == 400, response.text
            assert "secret" not in response.text
        await asyncio.sleep(0.05)
    finally:
        listener.close()
    assert visits == 0
    assert engine.seen == []


# C141, bytes and depth of JSON


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("depth", [10_000, 100_000])
async def test_deep_json_is_refused_everywhere(client, engine, path, depth):
    deep = b"[" * depth + b"]" * depth
    for field in (b"x", b"tools", b"metadata", b"chat_template_kwargs"):
        raw = json.dumps(ROUTES[path]).encode()[:-1] + b', "' + field + b'": ' + deep + b"}"
        response = await client.post(path, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert message_of(response)
    assert engine.seen == []


async def test_a_little_depth_works(client):
    deep: object = 1
    for _ in range(50):
        deep = [deep]
    for path, body in ROUTES.items():
        response = await client.post(path, json=body | {"x": deep})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"x"', b"{,}"])
async def test_what_is_no_object_is_refused_everywhere(client, engine, path, raw):
    response = await client.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "JSON" in message_of(response)
    assert engine.seen == []


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "tail", [b'"a": 1,}', b'"a": NaN}', b'"a": -Infinity}', b'"a": "\xff"}', b'"a": "\\ud83d"}']
)
async def test_bad_bytes_in_an_ignored_field_are_refused_everywhere(client, engine, path, tail):
    good = json.dumps(ROUTES[path]).encode()[:-1] + b", "
    headers = {"content-type": "application/json"}
    assert (await client.post(path, content=good + b'"a": 1}', headers=headers)).status_code == 200
    engine.seen.clear()
    response = await client.post(path, content=good + tail, headers=headers)
    assert response.status_code == 400
    assert message_of(response)
    assert engine.seen == []


@pytest.mark.parametrize("path", GENERATES)
async def test_nul_and_odd_characters_are_text(client, engine, path):
    odd = "a\x00b\u202e\ufeff\uffff"
    field = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    value = odd if field != "messages" else [{"role": "user", "content": odd}]
    response = await client.post(path, json=ROUTES[path] | {field: value})
    assert response.status_code == 200, response.text
    assert odd.encode() in bytes(engine.seen[0][0])


async def test_of_equal_keys_the_last_one_counts(client, engine):
    raw = b'{"prompt": "a", "max_tokens": 3, "max_tokens": 2}'
    response = await client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert engine.seen[0][1].max_tokens == 2


# C032: nothing to go on from


@pytest.mark.parametrize("path", ROUTES)
async def test_an_empty_user_turn_is_a_turn(client, engine, path):
    """With a template there is a prompt all the same; without one, an empty prompt is refused."""
    field = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    value = "" if field != "messages" else [{"role": "user", "content": ""}]
    response = await client.post(path, json=ROUTES[path] | {field: value})
    assert response.status_code == (400 if path == "/v1/completions" else 200), response.text


# C107: names of models


@pytest.mark.parametrize("path", ROUTES)
async def test_an_unknown_model_never_falls_back(client, engine, path):
    response = await client.post(path, json=ROUTES[path] | {"model": "nope"})
    assert response.status_code == 404
    assert "nope" in message_of(response)
    assert engine.seen == []


# C177: what errors tell

SECRET = "the-prompt-of-somebody-else"
LEAKS = re.compile(r"0x[0-9a-f]{6,}|/work/|/usr/|site-packages|Traceback|File \"|\.py\b|PATH=|" + SECRET)
FAULTS = [
    b"{",
    b'{"model": "nope", "prompt": "a", "input": "a", "max_tokens": 1, "messages": [{"role": "user"}]}',
    b'{"model": 5}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]}',
    b'{"messages": [{"role": "tool", "content": "x"}], "input": [{"role": "tool"}], "max_tokens": 5}',
    b'{"prompt": [99999], "tokens": [99999], "input": 5}',
    b'{"lora_request": {"path": "/etc/passwd"}, "prompt": "a", "input": "a"}',
]


@pytest.mark.parametrize("path", [*ROUTES, "/detokenize", "/v1/nothing", "/v1/responses/resp_none/cancel"])
async def test_errors_do_not_leak(client, engine, path):
    await client.post("/v1/completions", json={"prompt": SECRET})
    answers = [
        await client.post(path, content=raw, headers={"content-type": "application/json"}) for raw in FAULTS
    ]
    answers.append(await client.put(path))
    faults = [
        RuntimeError(f"{object()} in {__file__}"),
        KeyError(SECRET),
        RequestFailed("a step failed"),
        EngineDead("gone"),
    ]
    for fault in faults:
        engine.error = fault
        answers.append(await client.post(path, json=ROUTES.get(path, {})))
    assert any(answer.status_code >= 400 for answer in answers)
    for answer in answers:
        if answer.status_code >= 400:
            assert message_of(answer)
        assert not LEAKS.search(answer.text), answer.text
        assert not LEAKS.search(str(answer.headers))


@pytest.mark.parametrize("path", GENERATES)
async def test_errors_in_streams_do_not_leak(client, engine, path):
    engine.error, engine.error_after = RuntimeError(f"{object()} in {__file__} {SECRET}"), 2
    response = await client.post(path, json=ROUTES[path] | {"stream": True})
    assert response.status_code == 200
    assert "error" in response.text
    assert not LEAKS.search(response.text)
