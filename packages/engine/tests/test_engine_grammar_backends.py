"""Both back ends of grammars: what each allows and refuses, structural tags, and both in one batch."""

import json

import numpy as np
import pytest
from llm_engine import InvalidOption, InvalidRequest, SamplingParams
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar, fill_masks
from llm_engine.grammar import compiler as compiler_module
from llm_engine.grammar.spec import BACKENDS
from llm_engine.options import EngineOptions

pytest.importorskip("xgrammar")

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Brno", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compilers(tokenizer):
    return {name: GrammarCompiler(tokenizer, tokenizer.eos_token_ids, name) for name in BACKENDS}


@pytest.fixture(params=BACKENDS)
def compiler(request, compilers):
    return compilers[request.param]


def schema(value, **more):
    return GrammarSpec(kind="json_schema", text=json.dumps(value), **more)


def allows(compiler, spec, text):
    """Whether the whole text, and its end, may be written."""
    matcher, bits = compiler.compile(spec).start(), np.zeros(compiler.num_words, np.int32)
    for token in [*compiler._vocabulary.encode(text), min(compiler.eos_token_ids)]:
        matcher.fill(bits)
        if not bits[token // 32] >> (token % 32) & 1:
            return False
        matcher.accept([token])
    assert matcher.fault is None
    return True


def obj(**more):
    return {"type": "object", "additionalProperties": False} | more


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        (
            obj(properties={"a": {"type": "integer"}, "b": {"type": "null"}}, required=["b"]),
            '{"b":null}',
            '{"a":1}',
        ),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, "[1, 2]", "[1]"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 3}, "[1,2,3]", "[1,2,3,4]"),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"日本語"', '"日本語x"'),
        ({"type": "string", "pattern": "^[a-f]{2}-[0-9]+$"}, '"ab-77"', '"ax-77"'),
        ({"type": "integer", "minimum": -5, "maximum": 17}, "17", "18"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "0.25", "1.0"),
        ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 50}, "49", "48"),
        ({"enum": [f"value number {i}" for i in range(2000)]}, '"value number 1999"', '"value number 2000"'),
        ({"type": ["string", "null"], "maxLength": 1}, "null", '"ab"'),
        ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]}, "12", '"ab"'),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "null", "1"),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"type": "string", "format": "date-time"}, '"1999-12-31T23:59:59Z"', '"1999-12-31T23:59:60Z"'),
        ({"type": "string", "format": "time"}, '"10:21:01.5Z"', '"10:21:0114747365Z"'),
        ({"type": "string", "pattern": "^a(-[0-9]{1,3}){0,1}$"}, '"a-45"', '"a45"'),
        ({"type": "string", "format": "ipv4"}, '"10.0.255.1"', '"10.00.0.1"'),
        ({"type": "string", "format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"', '"123e4567"'),
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {
                    "n": obj(
                        properties={"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}},
                        required=["n"],
                    )
                },
            },
            '{"n": {"n": {"n": null}}}',
            '{"n": {"n": 1}}',
        ),
    ],
)
def test_schemas(compiler, value, good, bad):
    assert allows(compiler, schema(value), good)
    assert not allows(compiler, schema(value), bad)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (GrammarSpec(kind="json_object"), '{"a": [1, {"b": null}]}', "[1]"),
        (GrammarSpec(kind="regex", text=r"\d{3}-[a-z]+"), "123-abc", "12-abc"),
        (GrammarSpec(kind="choice", text='["ďábel 🌶️👩‍🚀 日本語", "x"]'), "ďábel 🌶️👩‍🚀 日本語", "ďábel"),
        (GrammarSpec(kind="choice", text=json.dumps(['a "b"\\\n\x01', "c"])), 'a "b"\\\n\x01', "a"),
        (GrammarSpec(kind="grammar", text='root ::= "a" b+\nb ::= "b"'), "abbb", "aa"),
        (GrammarSpec(kind="grammar", text='start: "a" b+\nb: "b"'), "abbb", "aa"),
        (GrammarSpec(kind="choice", text='["yes"]', after="</think>"), "I</think>yes", "I</think>no"),
    ],
)
def test_other_kinds(compiler, spec, good, bad):
    assert allows(compiler, spec, good)
    assert not allows(compiler, spec, bad)


def test_white_space_is_bounded(compiler):
    blanks = " " * 16
    assert allows(compiler, schema(WEATHER), f'{{{blanks}"city":{blanks}"Oslo"}}')
    assert not allows(compiler, schema(WEATHER), f'{{{blanks} "city": "Oslo"}}')


def test_marks_are_no_text(compiler, tokenizer):
    """A special token is spelled like text, and yet may not stand in a string."""
    matcher, bits = (
        compiler.compile(schema({"type": "string"})).start(),
        np.zeros(compiler.num_words, np.int32),
    )
    matcher.accept(tokenizer.encode('"a', add_special_tokens=False))
    matcher.fill(bits)
    assert not [token for token in tokenizer.special_token_ids if bits[token // 32] >> (token % 32) & 1]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"type": "not-a-type"}, "not-a-type"),
        ({"type": "object", "properties": []}, "properties"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "object", "properties": {"a": {"if": {"type": "string"}}}}, "if"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "https://example.com/schema"}, ""),
        ({"enum": []}, "empty"),
        ({"type": "string", "pattern": "(?<=a)b"}, "ook"),
        ({"type": "string", "format": "x"}, "format"),
        ({"type": "string", "format": "date", "pattern": "^2"}, "format"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(401)}}, "properties"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        (
            {
                "type": "object",
                "properties": {"a": {}},
                "required": ["a"],
                "patternProperties": {"^b": {}},
                "additionalProperties": False,
                "minProperties": 2,
            },
            "",
        ),
        (False, "nothing"),
        ([], "object"),
    ],
)
def test_what_cannot_be_enforced_is_named(compiler, value, part):
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(schema(value))
    assert part in str(caught.value)
    assert "/project/" not in str(caught.value)


def nested(depth):
    value = {"type": "integer"}
    for _ in range(depth):
        value = obj(properties={"a": value}, required=["a"])
    return value


def test_depth_is_bounded(compiler):
    with pytest.raises(InvalidGrammar, match="deep"):
        compiler.compile(schema(nested(70)))
    with pytest.raises(InvalidGrammar, match="JSON"):
        compiler.compile(GrammarSpec(kind="json_schema", text="[" * 100_000))
    assert allows(compiler, schema(nested(20)), '{"a":' * 20 + "1" + "}" * 20)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"minimum": 3}, "minimum without a type"),
        ({"type": "string", "pattern": "^a(-[0-9]{1,3})?$"}, "pattern"),
        ({"type": "string", "pattern": "^a", "maxLength": 3}, "maxLength"),
        ({"type": "object", "required": ["a"]}, "required"),
        ({"type": "object", "properties": {"a\n": {}}}, "properties"),
        ({"$ref": "#/$defs/a", "maxItems": 1, "$defs": {"a": {"type": "array"}}}, "maxItems beside $ref"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"allOf": [{"type": "integer"}, {"type": "number"}]}, "allOf"),
        ({"const": 1, "type": "string"}, "type beside const"),
        ({"type": "object", "patternProperties": {"^a": {}}}, "patternProperties"),
        ({"type": "array", "items": {"$anchor": "a"}}, "$anchor"),
    ],
)
def test_what_xgrammar_would_pass_over_is_refused(compilers, value, part):
    with pytest.raises(InvalidGrammar) as caught:
        compilers["xgrammar"].compile(schema(value))
    assert part in str(caught.value)


def test_one_of_members_that_tell_each_other_apart(compilers):
    def kind(name):
        return obj(properties={"kind": {"const": name}, "x": {"type": "integer"}}, required=["kind", "x"])

    spec = schema({"oneOf": [kind("a"), kind("b")]})
    assert allows(compilers["xgrammar"], spec, '{"kind": "b", "x": 1}')
    with pytest.raises(InvalidGrammar, match="oneOf"):
        compilers["xgrammar"].compile(schema({"oneOf": [kind("a"), kind("a")]}))


OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=weather>", "schema": WEATHER, "end": "</function>"},
        {"begin": "<function=count>", "schema": {"type": "integer"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
TAGS = [
    {
        "type": "tag",
        "begin": one["begin"],
        "content": {"type": "json_schema", "json_schema": one["schema"]},
        "end": one["end"],
    }
    for one in OLD["structures"]
]
CALL = '<function=weather>{"city": "Oslo"}</function>'


def tagged(**more):
    return {"type": "structural_tag", "format": more}


@pytest.mark.parametrize(
    "value", [OLD, tagged(type="triggered_tags", triggers=["<function="], tags=TAGS)], ids=["old", "new"]
)
def test_triggered_tags(compiler, value):
    spec = GrammarSpec(kind="structural_tag", text=json.dumps(value))
    for good in (
        "Just text.",
        f"Well: {CALL} and {CALL}!",
        "<function=count>12</function>",
        "a < b <functio",
    ):
        assert allows(compiler, spec, good), good
    for bad in (
        "<function=other>1</function>",
        '<function=weather>{"city": "Bonn"}</function>',
        f"{CALL} <function=z",
        "<function=count>1",
    ):
        assert not allows(compiler, spec, bad), bad


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            {"type": "tags_with_separator", "separator": ", ", "tags": TAGS, "at_least_one": True},
            [CALL, f"{CALL}, {CALL}"],
            ["", "x", f"{CALL}{CALL}"],
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<function="],
                "tags": TAGS,
                "at_least_one": True,
                "stop_after_first": True,
            },
            [CALL],
            ["text", f"{CALL} {CALL}", f"{CALL} more"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
                    {"type": "or", "elements": [{"type": "const_string", "value": "no"}, TAGS[1]]},
                    {"type": "optional", "content": {"type": "regex", "pattern": "!{2,3}"}},
                ],
            },
            ["<think>a < b</think>no", "<think></think><function=count>3</function>!!"],
            ["no", "<think>a</think>yes", "<think>a</think>no!"],
        ),
        (
            {
                "type": "tag",
                "begin": "[",
                "content": {"type": "json_schema", "json_schema": WEATHER},
                "end": ["]", ")"],
            },
            ['[{"city": "Brno"}]', '[{"city": "Brno"})'],
            ['[{"city": "Brno"}', '[{"city": 1}]'],
        ),
        (
            {"type": "plus", "content": {"type": "const_string", "value": "ab"}},
            ["ab", "ababab"],
            ["", "aba"],
        ),
    ],
)
def test_formats_of_structural_tags(compiler, form, good, bad):
    spec = GrammarSpec(kind="structural_tag", text=json.dumps(tagged(**form)))
    for text in good:
        assert allows(compiler, spec, text), text
    for text in bad:
        assert not allows(compiler, spec, text), text


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"type": "structural_tag"}, "either"),
        (OLD | {"triggers": []}, "triggers"),
        (OLD | {"triggers": ["<other"]}, "triggers"),
        (OLD | {"triggers": ["<function=", "<func"]}, "triggers"),
        (OLD | {"structures": [{"begin": "<function=a>", "schema": {"not": {}}, "end": ""}]}, "not"),
        (OLD | {"structures": [{"schema": {}, "end": ""}]}, "structures[0].begin"),
        (OLD | {"more": 1}, "more"),
        (tagged(type="dispatch"), "format.type"),
        (tagged(type="any_text", max_tokens=3), "format.max_tokens"),
        (tagged(type="json_schema", json_schema=WEATHER, style="qwen_xml"), "format.style"),
        (tagged(type="sequence", elements=[{"type": "tag"}]), "format.elements[0].begin"),
        (tagged(type="tag", begin="a", content={"type": "any_text"}, end=[1]), "format.end"),
        (tagged(type="json_schema", json_schema={"type": "array", "uniqueItems": True}), "uniqueItems"),
    ],
)
def test_what_of_structural_tags_is_refused(compiler, value, part):
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(GrammarSpec(kind="structural_tag", text=json.dumps(value)))
    assert part in str(caught.value)


def test_masks_of_many_rows_are_those_of_each(compilers):
    """Both back ends and free rows in one call, more rows than are filled one by one."""
    compiler = compilers["llguidance"]
    specs = [
        schema({"type": "integer", "minimum": index, "maximum": 99}, backend=BACKENDS[index % 2], after=after)
        for index, after in enumerate(["", "", "</think>"] * 5)
    ]
    matchers = [compiler.compile(spec).start() for spec in specs]
    together = np.zeros((len(matchers), compiler.num_words), np.int32)
    fill_masks(matchers, together)
    for matcher, row in zip(matchers, together, strict=True):
        alone = np.zeros(compiler.num_words, np.int32)
        matcher.fill(alone)
        assert (row == alone).all()
    assert (together[2] == -1).all()
    assert not (together[0] == -1).all()


def test_both_in_one_batch(llm):
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=60, grammar=schema(WEATHER, backend=backend))
        for seed in range(3)
        for backend in BACKENDS
    ]
    outputs = llm.generate(["Answer: "] * len(params), params, progress=False)
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop"
        assert json.loads(output.outputs[0].text)["city"] in ("Brno", "Oslo")


def test_what_is_not_there_is_refused(llm, compilers, monkeypatch):
    params = SamplingParams(grammar=schema(WEATHER, backend="outlines"))
    with pytest.raises(InvalidRequest, match="llguidance, xgrammar"):
        llm.generate("x", params, progress=False)
    with pytest.raises(InvalidOption, match="grammar_backend"):
        EngineOptions(model="x", grammar_backend="outlines")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InvalidOption, match=r"llm-stack-engine\[xgrammar\]"):
        EngineOptions(model="x", grammar_backend="xgrammar")


def test_grammars_are_remembered_within_bounds(tokenizer, monkeypatch):
    monkeypatch.setattr(compiler_module, "_MAX_COMPILED", 3)
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    specs = [GrammarSpec(kind="regex", text="a" * length) for length in range(1, 6)]
    for spec in specs:
        compiler.compile(spec)
    assert [compiler.find(spec) is not None for spec in specs] == [False, False, True, True, True]
    monkeypatch.setattr(compiler_module, "_MAX_COMPILED_BYTES", 1)
    for spec in specs[:2]:
        compiler.compile(GrammarSpec(kind=spec.kind, text=spec.text, backend="xgrammar"))
    assert len(compiler._compiled) == 1
