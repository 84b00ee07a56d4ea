"""Fault cases of constraints and demanded calls that need the real model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
FRANCE = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
HI = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8}


def ask(server, body, path: str):
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# C016, C067, C075: constraints

MALFORMED = [
    {"type": "not-a-type"},
    {"properties": []},
    {"type": "object", "required": "a"},
    {"type": "string", "pattern": "["},
    {"type": "array", "minItems": -1},
    {"enum": []},
    {"$ref": "#/$defs/missing"},
    {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(TEXT, FRANCE), (CHAT, HI)])
def test_malformed_constraints_are_named(server, alive, path, body, stream):
    forms = [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        for schema in MALFORMED
    ]
    forms += [
        ("guided_regex", "("),
        ("guided_grammar", 'a ::= "x"'),
        ("guided_grammar", 'root ::= "a"\nroot ::= "b"'),
    ]
    for field, value in forms:
        response = server.http.post(path, json=body | {field: value, "stream": stream})
        assert response.status_code == 400, (value, response.text)
        assert response.json()["error"]["param"] == field
        assert len(response.json()["error"]["message"]) > 10


def test_logprobs_are_finite_under_a_constraint(server, alive):
    body = HI | {"guided_choice": ["yes", "no"], "logprobs": True, "top_logprobs": 20}
    [choice] = ask(server, body, CHAT)["choices"]
    assert choice["message"]["content"] in ("yes", "no")
    assert all(len(entry["top_logprobs"]) == 20 for entry in choice["logprobs"]["content"])


def costly_schemas() -> list[object]:
    wide = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(400)}}
    deep: object = {"type": "integer"}
    for level in range(20):
        member = {"type": "object", "properties": {f"a{level}": deep}, "required": [f"a{level}"]}
        deep = {"oneOf": [member | {"additionalProperties": False}, {"type": "string"}]}
    patterns = {f"p{index}": {"type": "string", "pattern": f"(a{index}+b){{1,50}}"} for index in range(100)}
    megabyte = {"enum": [f"{index:0100d}" for index in range(10_000)]}
    return [wide, deep, {"type": "object", "properties": patterns}, {"enum": list("abc") * 5000}, megabyte]


def test_costly_schemas_do_not_hold_up_others(server, alive):
    """Compiled aside: probes and plain requests go on meanwhile."""
    plain = FRANCE | {"max_tokens": 1}

    def post(schema: object) -> int:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            return client.post(CHAT, json=HI | {"response_format": form}).status_code

    with ThreadPoolExecutor(5) as pool, httpx.Client(base_url=server.url, timeout=60) as other:
        quiet_s = max(seconds(other.post, TEXT, plain) for _ in range(20))
        slow = [pool.submit(post, schema) for schema in costly_schemas()]
        probes, answers = [], []
        while not all(one.done() for one in slow):
            probes.append(seconds(other.get, "/health"))
            answers.append(seconds(other.post, TEXT, plain))
        assert {one.result() for one in slow} <= {200, 400}
    print(f"quiet {quiet_s:.3f} s; meanwhile {max(answers):.3f} s, probes {max(probes):.3f} s")
    assert max(probes) < 2  # seconds, on a machine that others load
    assert max(answers) < 2 * quiet_s + 2


def seconds(call: Callable[..., httpx.Response], path: str, body: object = None) -> float:
    """How long a request takes that must succeed."""
    begun_s = time.monotonic()
    response = call(path) if body is None else call(path, json=body)
    assert response.status_code == 200, response.text
    return time.monotonic() - begun_s


# C070: recursion that the model has to end


@pytest.mark.parametrize("mutual", [False, True])
def test_a_model_ends_a_recursive_value(server, alive, mutual):
    """Null is made likely: a small model would go on."""
    names = ("a", "b") if mutual else ("a", "a")

    def node(following: str) -> dict[str, object]:
        after = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{following}"}]}
        properties = {"value": {"type": "integer"}, "next": after}
        required = ["value", "next"]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    schema = {"$ref": "#/$defs/a", "$defs": {names[0]: node(names[1]), names[1]: node(names[0])}}
    tokens = {
        server.http.post("/tokenize", json={"prompt": text}).json()["tokens"][0] for text in ("null", " null")
    }
    body = {
        "messages": [{"role": "user", "content": "A list of the numbers 1 and 2, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}},
        "logit_bias": {str(token): 20 for token in tokens},
        "temperature": 0,
        "max_tokens": 256,
    }
    [choice] = ask(server, body, CHAT)["choices"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


# C058, C060: calls that are demanded


def a_tool(name: str, **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def only_ping_is_called(server) -> None:
    tools = [a_tool("ping_tool", host={"enum": ["a", "b"]}), a_tool("get_weather", city={"enum": ["Brno"]})]
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    named = {"type": "function", "function": {"name": "ping_tool"}}
    for seed in range(1, 4):
        common = {"tools": tools, "tool_choice": named, "temperature": 1, "seed": seed, "max_tokens": 100}
        answer = ask(server, {"messages": HI["messages"]} | common, CHAT)
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert {call["function"]["name"] for call in calls} == {"ping_tool"}
        assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
        choice = {"type": "function", "name": "ping_tool"}
        body = {"input": "Hi", "tools": flat, "tool_choice": choice, "seed": seed, "max_output_tokens": 100}
        output = ask(server, body, "/v1/responses")["output"]
        assert {item["name"] for item in output if item["type"] == "function_call"} == {"ping_tool"}


def ends_as_a_call(server, choice: object) -> None:
    tools = [a_tool("get_weather", city={"enum": ["Brno"]})]
    body = HI | {"tools": tools, "tool_choice": choice, "max_tokens": 100, "parallel_tool_calls": False}
    [whole] = ask(server, body, CHAT)["choices"]
    frames = server.http.post(CHAT, json=body | {"stream": True}).text.split("\n\n")
    events = [json.loads(frame[6:]) for frame in frames if frame.startswith("data: {")]
    ended = [part["finish_reason"] for event in events for part in event["choices"] if part["finish_reason"]]
    assert ended == [whole["finish_reason"]] == ["tool_calls"]
    [cut] = ask(server, body | {"max_tokens": 4}, CHAT)["choices"]
    assert cut["finish_reason"] == "length"


def test_demanded_calls(start_server):
    server = start_server("--output-format", "hermes", "--max-model-len", "1024")
    only_ping_is_called(server)
    ends_as_a_call(server, "required")
    ends_as_a_call(server, {"type": "function", "function": {"name": "get_weather"}})
    other = {"type": "function", "function": {"name": "other"}}
    for more in ({"tools": [a_tool("f")], "tool_choice": other}, {"tool_choice": other}):
        response = server.http.post(CHAT, json=HI | more)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
