"""OpenAI's and Anthropic's JavaScript libraries over a socket, to the letter."""

from __future__ import annotations

import json

import pytest
from server_javascript import run_scenario
from server_sdk import CALL, CITY, ENDLESS, KEY, PERSON, UNICODE, sdk_server, vector


@pytest.fixture(scope="module")
def server():
    with sdk_server() as running:
        yield running


@pytest.fixture
def engine(server):
    server.engine.reset()
    return server.engine


@pytest.fixture
def run(server, engine):
    def run(scenario):
        url = server.embedder_url if scenario == "openai embeddings" else server.url
        return run_scenario(scenario, url, KEY, "replay")

    return run


def test_openai_plain(run, engine):
    engine.script = UNICODE
    seen = run("openai plain")
    assert (seen["content"], seen["finish"]) == (UNICODE, "stop")
    assert seen["usage"]["completion_tokens"] == len(engine.tokenizer.encode(UNICODE)) + 1


def test_openai_streaming(run, engine):
    engine.script = UNICODE
    seen = run("openai streaming")
    assert (seen["content"], seen["finish"]) == (UNICODE, "stop")
    assert seen["usage"]["completion_tokens"] == len(engine.tokenizer.encode(UNICODE)) + 1


def test_openai_tools(run, engine):
    engine.script = f"Let me look.\n{CALL}"
    seen = run("openai tools")
    for name, call in (("whole", seen["whole"]["call"]), ("streamed", seen["streamed"]["calls"][0])):
        assert call["name"] == "get_weather"
        assert json.loads(call["arguments"]) == CITY
        assert (seen[name]["content"], seen[name]["finish"]) == ("Let me look.", "tool_calls")
    assert any("21 °C" in engine.tokenizer.decode(prompt) for prompt, _ in engine.seen)


def test_openai_structured_output(run, engine):
    engine.script = json.dumps(PERSON)
    assert run("openai structured") == PERSON
    assert engine.seen[0][1].grammar.kind == "json_schema"


def test_openai_reasoning(run, engine):
    engine.script = "<think>\nHm, 日本.\n</think>\n\nYes."
    seen = run("openai reasoning")
    for part in (seen, seen["streamed"]):
        assert (part["content"], part["reasoning"].strip()) == ("Yes.", "Hm, 日本.")


def test_openai_stops_and_logprobs(run, engine):
    engine.script = "One, two, END three"
    assert run("openai stops") == "One, two, "
    tokens = run("openai logprobs")
    assert "".join(token for token, _ in tokens[:-1]) == engine.script
    assert {count for _, count in tokens} == {2}


def test_openai_errors(run, engine):
    seen = run("openai errors")
    assert seen == {
        "400": "BadRequestError 400 temperature",
        "401": "AuthenticationError 401",
        "404": "NotFoundError 404 model",
        "streamed": "BadRequestError 400 temperature",
    }
    assert engine.seen == []
    engine.busy = 1
    assert run("openai busy") == "RateLimitError 429"
    engine.busy = 1
    assert run("openai retry") == "Hello."


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_leaving_frees_the_request(run, engine, library):
    engine.script, engine.pause_s = ENDLESS, 0.02
    assert run(f"{library} leaving") == "left"
    assert engine.was_aborted()


def test_openai_embeddings(run):
    assert run("openai embeddings") == [vector("Grüße 日本"), vector("b")]


def test_openai_responses(run, engine):
    engine.script = UNICODE
    assert run("openai responses") == {
        "whole": UNICODE,
        "kept": UNICODE,
        "text": UNICODE,
        "last": "response.completed",
        "gone": "NotFoundError 404",
    }


def test_anthropic_plain_and_streaming(run, engine):
    engine.script = UNICODE
    tokens = len(engine.tokenizer.encode(UNICODE)) + 1
    assert run("anthropic plain") == {"text": UNICODE, "stop": "end_turn", "tokens": tokens}
    assert run("anthropic streaming") == {"text": UNICODE, "whole": UNICODE, "stop": "end_turn"}


def test_anthropic_tools(run, engine):
    engine.script = f"Let me look.\n{CALL}"
    seen = run("anthropic tools")
    assert seen == {"input": CITY, "streamed": CITY, "stop": "tool_use", "next": "tool_use"}
    assert any("21 °C" in engine.tokenizer.decode(prompt) for prompt, _ in engine.seen)


def test_anthropic_thinking(run, engine):
    engine.script = "<think>\nHm, 日本.\n</think>\n\nYes."
    (kind, thought), text = run("anthropic thinking")
    assert (kind, thought.strip(), text) == ("thinking", "Hm, 日本.", ["text", "Yes."])


def test_anthropic_stops(run, engine):
    engine.script = "One, two, END three"
    assert run("anthropic stops") == ["One, two, ", "stop_sequence", "END"]


def test_anthropic_errors(run, engine):
    assert run("anthropic errors") == {
        "400": "BadRequestError 400",
        "401": "AuthenticationError 401",
        "404": "NotFoundError 404",
    }
    engine.busy = 1
    assert run("anthropic busy") == "RateLimitError 429"


def test_anthropic_counts_tokens(run, engine):
    counted, used = run("anthropic count")
    assert counted == used > 0
