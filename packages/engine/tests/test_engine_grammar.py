"""Outputs that follow a grammar: what compiles, what is allowed, and that neighbours do not notice."""

import json
import re

import numpy as np
import pytest
from conftest import SMALL
from llm_engine import LLM, InvalidRequest, SamplingParams
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["a", "ž"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def schema(value, **more):
    return GrammarSpec(kind="json_schema", text=json.dumps(value), **more)


def choice(*texts, **more):
    return GrammarSpec(kind="choice", text=json.dumps(texts), **more)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def first_refused(compiler, spec, text):
    """The first token of a text that a grammar does not allow; None: all are, and the end after them."""
    matcher = compiler.compile(spec).start()
    bits = np.zeros(compiler.num_words, np.int32)
    for token in [*compiler._vocabulary.encode(text), min(compiler.eos_token_ids)]:
        matcher.fill(bits)
        if not bits[token // 32] >> (token % 32) & 1:
            return token
        matcher.accept([token])
    return None


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            schema(PERSON),
            '{"name": "Eve", "age": 7, "kind": "ž"}',
            '{"name": "Eve", "age": 121, "kind": "a"}',
        ),
        (schema(True), '[1, {"a": null}]', "[1"),
        (GrammarSpec(kind="json_object"), '{"a": [1, {"b": null}]}', "[1]"),
        (GrammarSpec(kind="regex", text=r"\d{3}-[a-z]+"), "123-abc", "12-abc"),
        (choice("ďábel 🌶️👩‍🚀 日本語", "x"), "ďábel 🌶️👩‍🚀 日本語", "ďábel"),
        (GrammarSpec(kind="grammar", text='root ::= "a" b+\nb ::= "b"'), "abbb", "aa"),
        (GrammarSpec(kind="grammar", text='start: "a" b+\nb: "b"'), "abbb", "aa"),
        (choice("yes", after="</think>"), "free text</think>yes", "free</think>no"),
    ],
)
def test_what_is_allowed(compiler, spec, good, bad):
    assert first_refused(compiler, spec, good) is None
    assert first_refused(compiler, spec, bad) is not None


def test_white_space_is_bounded(compiler):
    assert first_refused(compiler, schema(PERSON), "{" + " " * 200) is not None


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (schema({"type": "not-a-type"}), "not-a-type"),
        (schema({"properties": []}), "properties"),
        (schema({"required": "a", "type": "object"}), "required"),
        (schema({"type": "string", "pattern": "["}), "regex"),
        (schema({"type": "array", "minItems": -1}), "minItems"),
        (schema({"enum": []}), "empty"),
        (schema({"$ref": "#/$defs/missing"}), "missing"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema([]), "object"),
        (schema(False), "nothing"),
        (GrammarSpec(kind="json_schema", text="{"), "JSON"),
        (GrammarSpec(kind="regex", text="("), "regex"),
        (GrammarSpec(kind="grammar", text='start: "a'), ""),
        (choice(), "at least one"),
        (choice(""), "empty"),
        (GrammarSpec(kind="regex", text="a" * 300_000), "longer"),
    ],
)
def test_what_cannot_be_enforced_is_refused(compiler, spec, part):
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(spec)
    assert str(caught.value)
    assert part in str(caught.value)
    assert first_refused(compiler, choice("still"), "still") is None


def test_outputs_follow_their_grammars(llm):
    specs = [schema(PERSON)] * 4 + [GrammarSpec(kind="regex", text=r"[a-z]{3,8}( [a-z]{2,5}){2}")]
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=120, grammar=spec) for i, spec in enumerate(specs)
    ]
    outputs = llm.generate(["Answer: "] * len(params), params, progress=False)
    for output in outputs[:4]:
        person = json.loads(output.outputs[0].text)
        assert set(person) == {"name", "age", "kind"}
        assert 0 <= person["age"] <= 120
        assert output.outputs[0].finish_reason == "stop"
    assert re.fullmatch(specs[4].text, outputs[4].outputs[0].text)


def test_a_text_is_forced_to_the_letter(llm):
    text = "ďábel 🌶️👩‍🚀 日本語 한국어 ไทย"
    (output,) = llm.generate("Say:", SamplingParams(temperature=0, grammar=choice(text)), progress=False)
    assert output.outputs[0].text == text


def test_every_choice_follows_on_its_own(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=120, grammar=schema(PERSON))
    (output,) = llm.generate("Answer: ", params, progress=False)
    people = [json.loads(one.text) for one in output.outputs]
    assert len({person["name"] for person in people}) > 1


def test_neighbours_do_not_notice(llm):
    prompts = ["The capital of France is", "Once upon a time", "Answer: "]
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    alone = [llm.generate(prompt, greedy, progress=False)[0].outputs[0] for prompt in prompts[:2]]
    constrained = SamplingParams(temperature=0, max_tokens=40, grammar=schema(PERSON))
    together = llm.generate(prompts, [greedy, greedy, constrained], progress=False)
    for one, other in zip(alone, together[:2], strict=True):
        assert other.outputs[0].token_ids == one.token_ids


def test_logprobs_are_those_without_the_grammar(llm):
    forced = SamplingParams(temperature=0, max_tokens=3, logprobs=2, grammar=choice("zebra crossing"))
    free = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
    (one,), (other,) = (llm.generate("The capital of France is", p, progress=False) for p in (forced, free))
    assert one.outputs[0].logprobs[0].top == other.outputs[0].logprobs[0].top
    assert one.outputs[0].logprobs[0].rank > 1


def test_cut_off_by_the_limit(llm):
    params = SamplingParams(temperature=0, max_tokens=3, grammar=schema(PERSON))
    (output,) = llm.generate("Answer: ", params, progress=False)
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("overlap", [False, True])
def test_in_both_loops_and_after_preemptions(overlap, llm):
    """The same tokens as in a roomy engine, with a cache that holds two of ten outputs."""
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=90, grammar=schema(PERSON))
        if i % 2
        else SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        for i in range(10)
    ]
    prompts = [f"{i} Answer: " for i in range(10)]
    expected = llm.generate(prompts, params, progress=False)
    small = SMALL | {"kv_cache_bytes": 7 << 20, "max_model_len": 128, "overlap": overlap}
    with LLM("smollm2", **small) as tight:
        found = tight.generate(prompts, params, progress=False)
        assert tight.stats().preemptions > 0
    for one, other in zip(found, expected, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids


@pytest.mark.parametrize(
    ("more", "field"),
    [({"min_tokens": 2}, "min_tokens"), ({"ignore_eos": True}, "ignore_eos"), ({"grammar": "x"}, "grammar")],
)
def test_what_excludes_a_grammar(more, field):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{"grammar": choice("x")} | more)
    assert caught.value.field == field


def test_a_bad_grammar_is_refused_before_the_queue(llm):
    params = SamplingParams(grammar=schema({"type": "not-a-type"}))
    with pytest.raises(InvalidRequest) as caught:
        llm.generate("x", params, progress=False)
    assert caught.value.field == "grammar"
