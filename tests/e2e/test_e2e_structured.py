"""Structured output over HTTP with the real model: valid whatever it draws, refused by name."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

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
