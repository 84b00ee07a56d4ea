"""Fault cases of structured output that need no model: what compiles, what it costs, what is remembered."""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import numpy as np
import pytest
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar
from server_replay_engine import smollm2_tokenizer


def schema(value: object) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(value))


def regex(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


def gbnf(text: str) -> GrammarSpec:
    return GrammarSpec(kind="grammar", text=text)


@pytest.fixture(scope="module")
def compiler():
    tokenizer = smollm2_tokenizer()
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def allows(compiler: GrammarCompiler, spec: GrammarSpec, text: str) -> bool:
    """Whether the whole text, and its end, may be written."""
    matcher, bits = compiler.compile(spec).start(), np.zeros(compiler.num_words, np.int32)
    tokens = smollm2_tokenizer().encode(text, add_special_tokens=False)
    for token in [*tokens, min(compiler.eos_token_ids)]:
        matcher.fill(bits)
        if not bits[token // 32] >> (token % 32) & 1:
            return False
        matcher.accept([token])
    return True


def refusal(compiler: GrammarCompiler, spec: GrammarSpec) -> str | None:
    """Why the grammar is refused, or None."""
    try:
        compiler.compile(spec)
    except InvalidGrammar as error:
        return str(error)
    return None


# C068, C070


def test_a_rule_given_twice_is_refused_and_harms_no_other(compiler):
    good = gbnf('root ::= "x" | "y"')
    assert allows(compiler, good, "x")
    with pytest.raises(InvalidGrammar, match="'root' is given twice"):
        compiler.compile(gbnf('root ::= "x"\nroot ::= "y"'))
    with pytest.raises(InvalidGrammar, match="twice"):
        compiler.compile(gbnf('root ::= a\na ::= "x"\na ::= "y"'))
    with pytest.raises(InvalidGrammar, match="root"):
        compiler.compile(gbnf('a ::= "x"'))
    assert allows(compiler, regex("^(.*)$"), "any")
    assert allows(compiler, regex("^(|.*)$"), "any")
    assert allows(compiler, good, "y")


def node(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "defs",
    [{"a": {"$ref": "#/$defs/a"}}, {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}],
)
def test_a_reference_to_itself_alone_is_refused(compiler, defs):
    with pytest.raises(InvalidGrammar, match="no text"):
        compiler.compile(schema({"$ref": "#/$defs/a", "$defs": defs}))


def or_null(name: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}


@pytest.mark.parametrize(
    "defs",
    [
        {"a": node(next={"$ref": "#/$defs/a"})},
        {"a": node(next={"$ref": "#/$defs/b"}), "b": node(next={"$ref": "#/$defs/a"})},
        {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
        {"a": {"anyOf": [node(x={"$ref": "#/$defs/a"}), node(y={"$ref": "#/$defs/a"})]}},
        {"a": {"allOf": [{"type": "object"}, {"$ref": "#/$defs/a"}]}},
    ],
)
def test_what_requires_itself_without_end_is_refused(compiler, defs):
    with pytest.raises(InvalidGrammar, match="no text"):
        compiler.compile(schema({"$ref": "#/$defs/a", "$defs": defs}))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, '{"a":{}}'),
        ({"anyOf": [{"type": "integer"}, node(a={"$ref": "#"})]}, '{"a":{"a":5}}'),
        (node(a={"$ref": "#"}) | {"type": ["object", "null"]}, '{"a":null}'),
    ],
)
def test_recursion_that_can_end_works(compiler, value, text):
    assert allows(compiler, schema(value), text)


def test_real_recursion_works(compiler):
    linked = {"l": node(value={"type": "integer"}, next=or_null("l"))}
    spec = schema({"$ref": "#/$defs/l", "$defs": linked})
    assert allows(compiler, spec, '{"value": 1, "next": {"value": 2, "next": null}}')
    assert not allows(compiler, spec, '{"value": 1, "next": {"value": "x", "next": null}}')
    mutual = {"a": node(b=or_null("b")), "b": node(a=or_null("a"))}
    spec = schema({"$ref": "#/$defs/a", "$defs": mutual})
    assert allows(compiler, spec, '{"b": {"a": {"b": null}}}')
    assert not allows(compiler, spec, '{"b": {"b": null}}')


# C077, C080


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"type": "string", "pattern": "(?<=a)b"}, "look"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "x"}, "format"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
    ],
)
def test_what_is_not_supported_is_named(compiler, value, named):
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(schema(value))
    assert named in str(caught.value)


OBEYED: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, [[1, "a"]], [["a", 1]]),
    ({**node(a={"type": "integer"})}, [{"a": 1}], [{"a": 1, "b": 2}, {}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{"x": 1}, {}], [{"x": "y"}]),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        [[1, 2]],
        [[1], [1, 2, 3, 4]],
    ),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    ({"type": "integer", "minimum": 5, "maximum": 12}, [5, 12], [4, 13]),
    ({"anyOf": [node(a={"const": 1}), node(b={"const": 2})]}, [{"a": 1}, {"b": 2}], [{"a": 2}]),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, [{"ab": 1}], [{"ab": "x"}]),
    ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
]


@pytest.mark.parametrize("case", range(len(OBEYED)))
def test_strict_rules_are_obeyed(compiler, case):
    value, good, bad = OBEYED[case]
    for one in good:
        assert allows(compiler, schema(value), json.dumps(one)), one
    for one in bad:
        assert not allows(compiler, schema(value), json.dumps(one)), one


# C072, C073


def test_white_space_has_an_end(compiler):
    spec = schema(node(text={"type": "string"}, n={"type": "integer"}))
    assert allows(compiler, spec, '{"text": "a", "n": 1}')
    for blank in (" ", "\n", "\t", " \n"):
        assert not allows(compiler, spec, "{" + blank * 40 + '"text": "a", "n": 1}')
        assert not allows(compiler, spec, '{"text":' + blank * 40 + '"a", "n": 1}')
        assert not allows(compiler, spec, '{"text": "a", "n": 1' + blank * 40 + "}")
    assert allows(compiler, spec, '{"text": "' + " " * 40 + '", "n": 1}')  # in a string it is the model's own


@pytest.mark.parametrize("text", ["Räksmörgås", "晴天", "🌶️", "a\n" + " " * 31, 'quote " and \\ back'])
def test_values_are_written_as_they_are(compiler, text):
    for spec in (schema({"enum": ["x", text]}), schema({"const": text})):
        assert allows(compiler, spec, json.dumps(text, ensure_ascii=False))
        if not text.isascii():
            assert not allows(compiler, spec, json.dumps(text))  # no escapes for what needs none


# C075, C079, C176


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for level in range(depth):
        value = {"oneOf": [node(**{f"a{level}": value}), {"type": "string"}]}
    return value


COSTLY = {
    "oneOf, 12 deep": schema(nested(12)),
    "oneOf, 20 deep": schema(nested(20)),
    "a megabyte": schema(
        node(**{f"p{index}": {"type": "string", "pattern": f"a{index}+"} for index in range(20_000)})
    ),
    "many properties": schema(node(**{f"p{index}": {"type": "string"} for index in range(400)})),
    "(a+)+b": regex("(a+)+b"),
    "nested counts": regex("((a{1,200}){1,200}){1,200}"),
    "(.*a){25}": regex("(.*a){25}"),
    "a large count": regex("[a-z]{1,100000}"),
    "256 KiB of alternatives": regex("|".join(f"w{index}x" for index in range(30_000))),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_grammars_end_soon_and_small(compiler, name):
    before_kib, begun_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refused = refusal(compiler, COSTLY[name])
    if refused is None:
        matcher = compiler.compile(COSTLY[name]).start()
        bits = np.zeros(compiler.num_words, np.int32)
        for token in smollm2_tokenizer().encode("aaaa", add_special_tokens=False):
            matcher.fill(bits)
            if matcher.fault is not None:
                break
            matcher.accept([token])
    assert refused != ""
    assert time.process_time() - begun_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 500 * 1024


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(count)}}


def test_wide_objects_work_or_are_refused(compiler):
    """Not accepted first and ended by the parser's limits at the second token."""
    assert allows(compiler, schema(optional(400)), '{"p5": "a", "p7": "b", "p399": "c"}')
    assert allows(compiler, schema({"type": "array", "items": optional(400)}), '[{"p5": "a"}, {"p399": "c"}]')
    for wide in (optional(401), {"anyOf": [{"type": "null"}, node(a=optional(5000))]}):
        assert "properties: at most 400" in (refusal(compiler, schema(wide)) or "")


def test_thousands_of_schemas_are_not_all_kept(compiler):
    for index in range(1500):
        compiler.compile(schema({"const": f"value {index}"}))
        if index == 500:
            warm_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm_kib
    assert len(compiler._compiled) == 256
    assert grown_kib < 20 * 1024
