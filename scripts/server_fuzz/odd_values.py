"""Values that break careless servers, as JSON text. Knows nothing of the fields that they land in."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text, or what only looks like it, that is written as it stands."""

    text: bytes


Make = Callable[[random.Random], Any]

_LITERALS: tuple[bytes, ...] = (
    *b"null true false 0 -1 1 2 17 128 129 0.5 -0.0".split(),
    *b"1e-320 1e308 1e400 -1e400 NaN Infinity -Infinity".split(),
    str(2**31).encode(),
    str(2**63).encode(),
    str(-(2**63) - 1).encode(),
    str(2**64).encode(),
    b"1" + b"0" * 400,
    b"1" * 5000,
    b"-1.5e999999999",
    b"0x10",
    b"01",
    b'""',
    b'" "',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\uDBFF\\uDFFF"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\x80"',
    b'"tab\there"',
    b'"\\x"',
    b"[]",
    b"{}",
    b"[[]]",
    b"[null]",
    b'{"":""}',
    b'{"__proto__":{"a":1}}',
    b'{"type":null}',
    b"'single'",
    b"undefined",
)


def literal(rng: random.Random) -> Raw:
    """A short odd value."""
    return Raw(rng.choice(_LITERALS))


def nested(rng: random.Random) -> Raw:
    """Lists or objects inside each other, up to far beyond any stack."""
    depth = rng.choice((10, 100, 128, 200, 1000, 5000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"properties":{"a":', b"}}")))
    inner = b"1" if opening != b"[" else b""
    return Raw(opening * depth + inner + closing * depth)


def long_string(rng: random.Random) -> str:
    """Up to a megabyte of one thing, or of random characters."""
    size = rng.choice((100, 3000, 3000, 30_000, 300_000))
    kind = rng.choice(
        ("a", " ", "\n", "é", "💥", "\u200d", "<|im_end|>", "<think>", "[TOOL_CALLS]", "{{ 7*7 }}", "")
    )
    if kind:
        return kind * (size // len(kind))
    codes = (rng.choice((rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x30000))) for _ in range(100))
    return "".join(map(chr, codes)) * (size // 100)


def long_list(rng: random.Random) -> list[Any]:
    """Many small elements."""
    size = rng.choice((17, 129, 1025, 2049, 20_000))
    return [rng.choice((0, 1, -1, "a", None, True, {}, [], 2**40))] * size


def _regex(rng: random.Random) -> str:
    return rng.choice(
        (
            "(a+)+$",
            "((a{1000}){1000}){1000}",
            "(((((",
            "[",
            "(?=a)b",
            "(?<!a)b",
            "\\1(a)",
            "\\p{L}{1,10000}",
            "a{99999999999}",
            "[^\\x00-\\xff]*",
            "." * 5000,
            "(a|b)?" * 500,
            "\\ud800",
            "(?i)ß",
            "\\",
            "$^",
        )
    )


def _schema(rng: random.Random) -> dict[str, Any]:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(rng.choice((20, 40, 100))):
        deep = {"type": "object", "properties": {"a": deep}}
    return rng.choice(
        (
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
            {"$ref": "https://example.com/schema"},
            {"$ref": "file:///etc/passwd"},
            {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(3000)}},
            {"anyOf": [{"const": index} for index in range(3000)]},
            {"enum": ["x" * 2000] * 50},
            {"type": "string", "pattern": _regex(rng)},
            {"type": "string", "minLength": 10**9},
            {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
            {"type": "integer", "minimum": 10**30, "maximum": -1},
            {"type": "number", "multipleOf": 1e-300},
            {"type": ["string", "nothing"]},
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            {"not": {}},
            {"type": "string", "format": "uuid\u0000"},
            {"properties": {"\ud800": {}}},
            deep,
        )
    )


def _grammar(rng: random.Random) -> str:
    return rng.choice(
        (
            "start: start",
            "start: start start | ",
            "",
            "start: %import common.WORD",
            'start: "a"' + ' "b"' * 20_000,
            "start: /(a+)+/",
            "root ::= root",
            'root ::= "a" root | "b"',
            "start: " + "(" * 2000 + '"a"' + ")" * 2000,
            "\n".join(f'r{index}: r{index + 1} "x"' for index in range(3000)),
            "start: undefined_rule",
            "start: /[/",
        )
    )


def _tools(rng: random.Random) -> list[dict[str, Any]]:
    count = rng.choice((1, 2, 128, 129))
    parameters = rng.choice((_schema(rng), None, True, "x", {"type": "object"}))
    name = rng.choice(("f", "", "a b", "x" * 200, "ü", "f\u0000"))
    unique = rng.random() < 0.8
    kind = rng.choice(("openai", "anthropic", "responses"))
    tools: list[dict[str, Any]] = []
    for index in range(count):
        called = f"{name}{index}" if unique else name
        if kind == "openai":
            tools.append({"type": "function", "function": {"name": called, "parameters": parameters}})
        elif kind == "anthropic":
            tools.append({"name": called, "input_schema": parameters})
        else:
            tools.append({"type": "function", "name": called, "parameters": parameters})
    return tools


def _turns(rng: random.Random) -> list[dict[str, Any]]:
    content: Any = rng.choice(
        (
            "hi",
            "",
            None,
            [],
            [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}],
            [{"type": "text"}],
            [{"type": "input_audio", "input_audio": {"data": "!!!", "format": "wav"}}],
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}],
            Raw,
        )
    )
    if content is Raw:
        content = long_string(rng)
    roles = ("user", "assistant", "system", "tool", "developer", "function", "", "USER")
    return [{"role": rng.choice(roles), "content": content} for _ in range(rng.choice((0, 1, 2, 3, 7, 400)))]


_TELLING: dict[str, Make] = {
    "stop": lambda rng: rng.choice(
        (["x"] * 17, [f"s{index}" for index in range(16)], [""], "\u0000", ["a" * 5000])
    ),
    "stop_sequences": lambda rng: rng.choice((["x"] * 17, ["", "a"], ["\ud800"], ["a" * 5000] * 16)),
    "n": lambda rng: rng.choice((0, -1, 5, 128, 129, 10**9, 1.5)),
    "logprobs": lambda rng: rng.choice((-1, 0, 20, 21, 10**6, True)),
    "top_logprobs": lambda rng: rng.choice((-1, 0, 20, 21, 10**6)),
    "max_tokens": lambda rng: rng.choice((-1, 0, 1, 10**9, 2**63 - 1)),
    "max_output_tokens": lambda rng: rng.choice((-1, 0, 1, 10**9)),
    "temperature": lambda rng: rng.choice((-1, 0, 1e-30, 2, 1e30, 5e-324)),
    "seed": lambda rng: rng.choice((-1, 2**63 - 1, -(2**63), 2**64)),
    "response_format": lambda rng: {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": _schema(rng)},
    },
    "schema": _schema,
    "guided_json": _schema,
    "guided_grammar": _grammar,
    "regex": _regex,
    "structured_outputs": lambda rng: rng.choice(
        (
            {"regex": _regex(rng)},
            {"grammar": _grammar(rng)},
            {"json": _schema(rng)},
            {"json": "{"},
            {"choice": []},
            {"choice": ["", "a"]},
            {"choice": ["x" * 100_000]},
            {"structural_tag": {"type": "structural_tag", "format": {}}},
            {"structural_tag": "x"},
            {"json_object": True, "regex": "a"},
        )
    ),
    "tools": _tools,
    "parameters": _schema,
    "input_schema": _schema,
    "messages": _turns,
    "input": lambda rng: rng.choice(
        (_turns(rng), "", [], [[]], [-1], [10**9], [True], ["a"] * 2049, [1] * 5000)
    ),
    "prompt": lambda rng: rng.choice(
        ("", [], [[]], [-1], [10**9], ["a"] * 1025, [1] * 5000, ["a", 1], [[1], "a"])
    ),
    "tokens": lambda rng: rng.choice(([], [-1], [10**9], [2**63], [1] * 100_000)),
    "logit_bias": lambda rng: rng.choice(
        (
            {"-1": 1},
            {"1e3": 1},
            {"999999999": 1},
            {"1": "x"},
            {str(index): 1 for index in range(4097)},
            {"1": 1e30},
        )
    ),
    "tool_choice": lambda rng: rng.choice(
        (
            "required",
            "none",
            "x",
            {"type": "function", "function": {"name": "nope"}},
            {"type": "tool"},
            {"type": "any"},
        )
    ),
    "chat_template_kwargs": lambda rng: rng.choice(
        (
            {"messages": 1},
            {"tools": [1]},
            {"bos_token": None},
            {"raise_exception": 1},
            {"range": 5, "namespace": 1},
            {"add_generation_prompt": "x"},
            {"enable_thinking": "x"},
        )
    ),
    "stream_options": lambda rng: rng.choice(({"include_usage": "x"}, {"include_usage": True}, {}, {"x": 1})),
    "thinking": lambda rng: rng.choice(
        (
            {"type": "enabled"},
            {"type": "enabled", "budget_tokens": 10**12},
            {"type": "x"},
            {"budget_tokens": 5},
        )
    ),
    "model": lambda rng: rng.choice(("", "gpt-4", "../../etc/passwd", "x" * 10_000, "\u0000")),
    "dimensions": lambda rng: rng.choice((0, -1, 1, 95, 97, 10**9)),
    "truncate_prompt_tokens": lambda rng: rng.choice((0, -1, -2, 1, 10**9)),
    "documents": lambda rng: rng.choice(([], [""], [1], [{"text": None}], ["a"] * 2049, [{}])),
    "top_n": lambda rng: rng.choice((0, -1, 10**9)),
    "cache_salt": lambda rng: rng.choice(("", "x" * 257, "\ud800")),
    "previous_response_id": lambda rng: rng.choice(("", "resp_x", "\u0000", "../x")),
    "tool_calls": lambda rng: rng.choice(
        (
            [],
            [{}],
            [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "f", "arguments": rng.choice(("{", "[]", "1", ""))},
                }
            ],
            [{"id": None, "function": {"name": "", "arguments": {"a": {}}}}],
        )
    ),
}


def telling(name: str, rng: random.Random) -> object:
    """A value that is near to what the field ``name`` takes; any odd value where none is known."""
    make = _TELLING.get(name)
    return odd_value(rng) if make is None else make(rng)


def odd_value(rng: random.Random) -> object:
    """Any odd value; the large ones seldom."""
    draw = rng.random()
    if draw < 0.75:
        return literal(rng)
    if draw < 0.85:
        return nested(rng)
    return long_string(rng) if draw < 0.93 else long_list(rng)


def odd_name(rng: random.Random) -> str:
    """The name of a field that no one knows, or that some other server knows."""
    known = (
        "best_of",
        "use_beam_search",
        "prompt_embeds",
        "lora_path",
        "logits_processors",
        "chat_template",
        *_TELLING,
    )
    if rng.random() < 0.5:
        return rng.choice(known)
    return "".join(rng.choices(string.ascii_letters + ' .[]"\\\u0000é💥', k=rng.choice((0, 1, 8, 300))))


def encoded(value: object) -> bytes:
    """``value`` as JSON text, with all `Raw` in it as they stand."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        pairs = (encoded(str(name)) + b":" + encoded(part) for name, part in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(encoded, value)) + b"]"
    return json.dumps(value).encode()
