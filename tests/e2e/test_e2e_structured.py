"""Structured output over HTTP with the real model: valid whatever it draws, refused by name."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import pytest

BACKENDS = ("llguidance", "xgrammar")

MESSAGES = [{"role": "user", "content": "Tell me of a person."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["ž", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
WEIRD = "ďábel 🌶️👩‍🚀 日本語 한국어 ไทย"


def ask(client, **more):
    options = {"model": "smollm2", "messages": MESSAGES, "temperature": 1.0, "max_tokens": 120}
    return client.chat.completions.create(**options | more)


def text_of(client, **more):
    return "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True, **more))


def test_answers_fit_the_schema_whole_and_streamed(client):
    with ThreadPoolExecutor(4) as pool:
        wholes = list(pool.map(lambda seed: ask(client, response_format=FORM, seed=seed), range(4)))
    for whole in wholes:
        person = json.loads(whole.choices[0].message.content)
        assert set(person) == {"name", "age", "tags"}
        assert 0 <= person["age"] <= 99
        assert whole.choices[0].finish_reason == "stop"
    assert text_of(client, response_format=FORM, seed=2) == wholes[2].choices[0].message.content


def test_a_text_is_forced_to_the_letter(client):
    forced = {"extra_body": {"structured_outputs": {"choice": [WEIRD]}}}
    assert ask(client, **forced).choices[0].message.content == WEIRD
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True, **forced)]
    assert "".join(pieces) == WEIRD
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "not-a-type"},
        {"properties": []},
        {"type": "string", "pattern": "["},
        {"$ref": "#/$defs/missing"},
        {"enum": []},
        {"type": "array", "uniqueItems": True},
    ],
)
def test_what_cannot_be_enforced_is_refused_and_harms_nobody(client, schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, response_format=form, stream=stream)
        assert caught.value.param == "response_format"
        assert caught.value.body["message"]
    assert ask(client, messages=MESSAGES, max_tokens=3).choices[0].finish_reason == "length"


def test_a_grammar_after_a_bad_one(client):
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_body={"guided_regex": "("})
    answer = ask(client, extra_body={"guided_regex": "[ab]{3}"})
    assert len(answer.choices[0].message.content) == 3


# Both back ends


def with_backend(name: str, **more):
    return {"extra_body": {"guided_decoding_backend": name}} | more


def random_schemas():
    path = Path(__file__).parents[2] / "scripts" / "random_schemas.py"
    spec = importlib.util.spec_from_file_location("random_schemas", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documents_of_random_schemas_are_valid(client):
    """A slice of scripts/random_schema_documents.py: a schema of each keyword, both back ends at once."""
    pytest.importorskip("xgrammar")
    module = random_schemas()

    def document(keyword: str, backend: str) -> str:
        schema = module.random_schema(keyword, seed=7)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        more = {"response_format": form, "guided_decoding_backend": backend}
        try:
            answer = client.completions.create(
                model="smollm2", prompt="JSON:", temperature=1, seed=1, max_tokens=120, extra_body=more
            ).choices[0]
        except openai.BadRequestError as error:
            return "refused" if "enforce" in error.body["message"] else error.body["message"]
        if answer.finish_reason == "length":
            return "cut"
        jsonschema.validate(json.loads(answer.text), schema)
        return "valid"

    pairs = [(keyword, backend) for keyword in module.GENERATORS for backend in BACKENDS]
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda pair: document(*pair), pairs))
    assert set(found) <= {"valid", "cut", "refused"}
    refused = [pair for pair, outcome in zip(pairs, found, strict=True) if outcome == "refused"]
    assert {backend for _, backend in refused} <= {"xgrammar"}
    assert len(refused) <= 3
    assert found.count("cut") <= 10


CALL = {
    "type": "triggered_tags",
    "triggers": ["<call="],
    "tags": [
        {
            "type": "tag",
            "begin": "<call=person>",
            "content": {"type": "json_schema", "json_schema": PERSON},
            "end": "</call>",
        },
        {
            "type": "tag",
            "begin": "<call=none>",
            "content": {"type": "const_string", "value": "-"},
            "end": "</call>",
        },
    ],
    "at_least_one": True,
    "stop_after_first": True,
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_structural_tags(client, backend):
    """Free text, then a call; SmolLM2 finds the trigger where little else is likely."""
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    tags = {"type": "sequence", "elements": [{"type": "const_string", "value": "Well. "}, CALL["tags"][0]]}
    form = {"type": "structural_tag", "format": tags}
    answer = ask(client, **with_backend(backend, response_format=form, seed=3)).choices[0]
    assert answer.finish_reason == "stop"
    head, _, rest = answer.message.content.partition("<call=person>")
    assert head == "Well. "
    assert set(json.loads(rest.removesuffix("</call>"))) == {"name", "age", "tags"}
    form = {"type": "structural_tag", "format": CALL | {"triggers": ["<other="]}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **with_backend(backend, response_format=form))
    assert caught.value.param == "response_format"
    assert "triggers" in caught.value.body["message"]


def test_tokens_of_others_come_while_a_heavy_grammar_is_compiled(client, server):
    """Seconds of work for xgrammar; a stream that runs meanwhile gets its tokens all along."""
    pytest.importorskip("xgrammar")
    ask(client, **with_backend("xgrammar", response_format=FORM, max_tokens=1))  # the library is imported
    member = {"type": "string", "pattern": "^[a-z]{1,20}$"}
    wide = {"type": "object", "properties": {f"p{index}": member for index in range(100)}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wide}}
    came_s: list[float] = []
    started = threading.Event()

    def stream() -> None:
        options = {"extra_body": {"ignore_eos": True}, "max_tokens": 400, "stream": True}
        for chunk in ask(client, **options):
            if chunk.choices and chunk.choices[0].delta.content:
                came_s.append(time.monotonic())
                started.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream)
        assert started.wait(60)
        begun_s = time.monotonic()
        with contextlib.suppress(openai.BadRequestError):  # over the time limit, on a busy machine
            ask(client, **with_backend("xgrammar", response_format=form, max_tokens=1))
        ended_s = time.monotonic()
        running.result()
    meanwhile = [moment for moment in came_s if begun_s < moment < ended_s]
    gaps = [after - before for before, after in itertools.pairwise([begun_s, *meanwhile])]
    print(f"compiled for {ended_s - begun_s:.2f} s, {len(meanwhile)} tokens meanwhile, gap {max(gaps):.2f} s")
    assert ended_s - begun_s > 0.3
    assert max(gaps) < max(0.5, (ended_s - begun_s) / 3)
