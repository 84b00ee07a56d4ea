"""Client libraries against the real server and SmolLM2; to the letter they are checked elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "server" / "tests"))

from server_javascript import run_scenario

HI = [{"role": "user", "content": "Hi"}]  # as the scenarios in JavaScript say
MODEL, KEY = "smollm2", "none is asked for"
LIMITS = {"max_tokens": 500, "temperature": 0}


class Person(BaseModel):
    """Someone."""

    name: str
    age: int


@pytest.fixture(scope="module")
def litellm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network at import
        import litellm as library
    library.telemetry = False
    return library


@pytest.fixture(scope="module")
def greeting(server):
    """The model's greedy answer, read without any library."""
    answer = server.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI, **LIMITS})
    text = answer.json()["choices"][0]["message"]["content"]
    assert len(text) > 5
    return text


@pytest.fixture
def openai_model(server):
    return ChatOpenAI(model=MODEL, base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, **LIMITS)


@pytest.fixture
def anthropic_model(server):
    return ChatAnthropic(model=MODEL, base_url=server.url, api_key=KEY, max_retries=0, **LIMITS)


@pytest.mark.parametrize("api", ["hosted_vllm", "openai", "anthropic"])
def test_litellm(server, litellm, greeting, api):
    base = server.url if api == "anthropic" else f"{server.url}/v1"
    ask = {"model": f"{api}/{MODEL}", "messages": HI, "api_base": base, "api_key": KEY, **LIMITS}
    whole = litellm.completion(**ask)
    assert whole.choices[0].message.content == greeting
    assert whole.usage.completion_tokens > 1
    chunks = litellm.completion(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == greeting
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**ask | {"temperature": -1})


def test_langchain_openai(openai_model, greeting):
    assert openai_model.invoke("Hi").content == greeting
    assert "".join(chunk.content for chunk in openai_model.stream("Hi")) == greeting


def test_langchain_anthropic(anthropic_model, greeting):
    assert anthropic_model.invoke("Hi").content == greeting
    streamed = [chunk.text for chunk in anthropic_model.stream("Hi")]
    assert "".join(part if isinstance(part, str) else part() for part in streamed) == greeting


def test_langchain_structured_output(openai_model):
    ask = openai_model.with_structured_output(Person, method="json_schema")
    assert isinstance(ask.invoke("Ann is 31 years old. Who is she?"), Person)


def test_javascript_openai(server, greeting):
    for scenario in ("openai plain", "openai streaming"):
        seen = run_scenario(scenario, server.url, KEY, MODEL)
        assert (seen["content"], seen["finish"]) == (greeting, "stop")
    person = run_scenario("openai structured", server.url, KEY, MODEL)
    assert Person(**person)
    seen = run_scenario("openai responses", server.url, KEY, MODEL)
    assert seen["whole"] == seen["kept"] == seen["text"]
    assert seen["last"] == "response.completed"
    assert seen["gone"].startswith("NotFoundError 404")


def test_javascript_anthropic(server, greeting):
    assert run_scenario("anthropic plain", server.url, KEY, MODEL)["text"] == greeting
    seen = run_scenario("anthropic streaming", server.url, KEY, MODEL)
    assert seen == {"text": greeting, "whole": greeting, "stop": "end_turn"}
    count, used = run_scenario("anthropic count", server.url, KEY, MODEL)
    assert 0 < used <= count  # what came from the cache is counted beside it


def test_a_javascript_client_that_leaves_frees_its_blocks(server):
    assert run_scenario("openai leaving", server.url, KEY, MODEL) == "left"
    deadline_s = time.monotonic() + 10
    while server.used_blocks() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert server.used_blocks() == 0
