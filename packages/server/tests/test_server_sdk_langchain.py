"""LangChain's models of OpenAI's and Anthropic's APIs, on a socket, to the letter."""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from server_sdk import CALL, CITY, ENDLESS, KEY, PERSON, UNICODE, sdk_server, vector


class Person(BaseModel):
    """Someone."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return f"21 °C in {city}"


@pytest.fixture(scope="module")
def server():
    with sdk_server() as running:
        yield running


@pytest.fixture
def engine(server):
    server.engine.reset()
    return server.engine


@pytest.fixture
def openai_model(server, engine):
    def make(**more):
        options = {"model": "replay", "base_url": f"{server.url}/v1", "api_key": KEY, "max_tokens": 500}
        return ChatOpenAI(**options | {"max_retries": 0} | more)

    return make


@pytest.fixture
def anthropic_model(server, engine):
    def make(**more):
        options = {"model": "replay", "base_url": server.url, "api_key": KEY, "max_tokens": 500}
        return ChatAnthropic(**options | {"max_retries": 0} | more)

    return make


@pytest.fixture(params=["openai", "responses", "anthropic"])
def make(request, openai_model, anthropic_model):
    """Makes models of one of the APIs."""

    def made(**more):
        if request.param == "anthropic":
            return anthropic_model(**more)
        return openai_model(use_responses_api=request.param == "responses", **more)

    made.api = request.param
    return made


def test_plain(make, engine):
    engine.script = UNICODE
    answer = make().invoke([SystemMessage("Be kind."), HumanMessage("Hi")])
    assert answer.text == UNICODE
    assert answer.usage_metadata["output_tokens"] == len(engine.tokenizer.encode(UNICODE)) + 1
    assert answer.usage_metadata["input_tokens"] == len(engine.seen[0][0])
    assert "Be kind." in engine.tokenizer.decode(engine.seen[0][0])


def test_streaming(make, engine):
    engine.script = UNICODE
    chunks = list(make().stream("Hi"))
    assert len(chunks) > 5
    assert "".join(chunk.text for chunk in chunks) == UNICODE


# LangChain keeps connections of its clients for the process, so all tests with a loop share one.
@pytest.mark.asyncio(loop_scope="module")
async def test_async_streaming(make, engine):
    engine.script = UNICODE
    assert "".join([chunk.text async for chunk in make().astream("Hi")]) == UNICODE


@pytest.mark.parametrize("stream", [False, True])
def test_tools(make, engine, stream):
    engine.script = f"Let me look.\n{CALL}"
    model = make().bind_tools([get_weather])
    question = HumanMessage("Weather?")
    if stream:
        answer = None
        for chunk in model.stream([question]):
            answer = chunk if answer is None else answer + chunk
    else:
        answer = model.invoke([question])
    assert answer.text == "Let me look."
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", CITY)
    engine.script = "Sunny."
    turns = [question, answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert model.invoke(turns).text == "Sunny."
    assert "21 °C in Brno ☀️" in engine.tokenizer.decode(engine.seen[-1][0])


def test_structured_output_by_schema(openai_model, engine):
    engine.script = json.dumps(PERSON)
    for responses in (False, True):
        model = openai_model(use_responses_api=responses).with_structured_output(Person, method="json_schema")
        assert model.invoke("Who?") == Person(**PERSON)
        grammar = engine.seen[-1][1].grammar
        assert grammar.kind == "json_schema"
        assert set(json.loads(grammar.text)["properties"]) == {"name", "age"}


def test_structured_output_by_tool(make, engine):
    engine.script = "<tool_call>\n" + json.dumps({"name": "Person", "arguments": PERSON}) + "\n</tool_call>"
    model = make().with_structured_output(Person, method="function_calling")
    assert model.invoke("Who?") == Person(**PERSON)
    assert engine.seen[-1][1].grammar is not None  # the call is enforced


def test_structured_output_by_json_mode(openai_model, engine):
    engine.script = json.dumps(PERSON)
    assert openai_model().with_structured_output(Person, method="json_mode").invoke("Who?") == Person(
        **PERSON
    )
    assert engine.seen[-1][1].grammar.kind == "json_object"


def test_reasoning_over_anthropic(anthropic_model, engine):
    engine.script = "<think>\nHm, 日本.\n</think>\n\nYes."
    model = anthropic_model(thinking={"type": "enabled", "budget_tokens": 200})
    for answer in (model.invoke("Hi"), sum(list(model.stream("Hi"))[1:], next(iter(model.stream("Hi"))))):
        thoughts = [block["thinking"] for block in answer.content if block["type"] == "thinking"]
        assert "".join(thoughts).strip() == "Hm, 日本."
        assert answer.text == "Yes."


def test_reasoning_over_responses(openai_model, engine):
    engine.script = "<think>\nHm, 日本.\n</think>\n\nYes."
    answer = openai_model(use_responses_api=True).invoke("Hi")
    [thought] = [block for block in answer.content if block["type"] == "reasoning"]
    assert "Hm, 日本." in json.dumps(thought, ensure_ascii=False)
    assert answer.text == "Yes."


def test_stops(openai_model, anthropic_model, engine):
    engine.script = "One, two, END three"
    assert openai_model().invoke("Count.", stop=["END"]).text == "One, two, "
    assert anthropic_model().invoke("Count.", stop=["END"]).text == "One, two, "


def test_logprobs(openai_model, engine):
    engine.script = "Yes, no."
    answer = openai_model(logprobs=True, top_logprobs=2).invoke("Hi")
    content = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content[:-1]) == "Yes, no."
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)


def test_errors(make, engine):
    library = anthropic if make.api == "anthropic" else openai
    for more, kind in (
        ({"temperature": -1}, library.BadRequestError),
        ({"api_key": "wrong"}, library.AuthenticationError),
        ({"model": "gpt-9"}, library.NotFoundError),
    ):
        with pytest.raises(kind):
            make(**more).invoke("Hi")
        with pytest.raises(kind):
            list(make(**more).stream("Hi"))
    assert engine.seen == []
    engine.busy = 1
    with pytest.raises(library.RateLimitError):
        make().invoke("Hi")


def test_a_busy_server_is_asked_again(make, engine):
    engine.busy = 1
    assert make(max_retries=1).invoke("Hi").text == "Hello."
    assert len(engine.seen) == 1


def test_leaving_frees_the_request(make, engine):
    engine.script, engine.pause_s = ENDLESS, 0.02
    stream = make().stream("Hi")
    next(stream)
    stream.close()
    assert engine.was_aborted()


@pytest.mark.asyncio(loop_scope="module")
async def test_leaving_frees_the_request_in_a_loop_too(make, engine):
    engine.script, engine.pause_s = ENDLESS, 0.02
    stream = make().astream("Hi")
    await anext(stream)
    await stream.aclose()
    assert await asyncio.to_thread(engine.was_aborted)


def test_embeddings(server):
    model = OpenAIEmbeddings(
        model="replay",
        base_url=f"{server.embedder_url}/v1",
        api_key=KEY,
        check_embedding_ctx_length=False,  # else it sends tokens of OpenAI's vocabulary
    )
    assert model.embed_documents([UNICODE, "b"]) == [vector(UNICODE), vector("b")]
    assert model.embed_query("b") == vector("b")


def test_tokens_are_counted(anthropic_model, engine):
    model = anthropic_model()
    engine.script = "Hello."
    turns = [SystemMessage("Be kind."), HumanMessage(UNICODE)]
    used = model.invoke(turns).usage_metadata["input_tokens"]
    assert model.get_num_tokens_from_messages(turns) == used
