"""The litellm library over OpenAI's and Anthropic's APIs, on a socket, to the letter."""

from __future__ import annotations

import json

import pytest
from server_sdk import (
    CALL,
    CITY,
    ENDLESS,
    KEY,
    PERSON,
    PERSON_SCHEMA,
    UNICODE,
    WEATHER_SCHEMA,
    sdk_server,
    vector,
)

_THINKING = {
    "thinking": {"type": "enabled", "budget_tokens": 200},
    "allowed_openai_params": ["thinking"],  # of a model that it does not know
}
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}]


@pytest.fixture(scope="module")
def server():
    with sdk_server() as running:
        yield running


@pytest.fixture
def engine(server):
    server.engine.reset()
    return server.engine


@pytest.fixture(scope="module")
def litellm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network at import
        import litellm as library
    library.telemetry = False
    return library


@pytest.fixture(params=["hosted_vllm", "openai", "anthropic"])
def ask(request, litellm, server, engine):
    """`litellm.completion` over one of the APIs."""
    base = server.url if request.param == "anthropic" else f"{server.url}/v1"

    def completion(**more):
        options = {"model": f"{request.param}/replay", "messages": HI, "api_base": base, "api_key": KEY}
        return litellm.completion(**options | {"max_tokens": 500, "max_retries": 0} | more)

    completion.api = request.param
    return completion


def test_plain(ask, engine):
    engine.script = UNICODE
    answer = ask()
    choice = answer.choices[0]
    assert choice.message.content == UNICODE
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(engine.tokenizer.encode(UNICODE)) + 1
    assert answer.usage.prompt_tokens == len(engine.seen[0][0])


def test_streaming(ask, engine, litellm):
    engine.script = UNICODE
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == UNICODE
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content == UNICODE
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len(engine.tokenizer.encode(UNICODE)) + 1


@pytest.mark.parametrize("stream", [False, True])
def test_tools(ask, engine, litellm, stream):
    engine.script = f"Let me look.\n{CALL}"
    answer = ask(tools=TOOLS, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == CITY
    engine.script = "Sunny."
    turns = [*HI, choice.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21 °C"}]
    assert ask(messages=turns, tools=TOOLS).choices[0].message.content == "Sunny."
    prompt = engine.tokenizer.decode(engine.seen[-1][0])
    assert "21 °C" in prompt
    assert "Brno ☀️" in prompt


def test_structured_output(ask, engine):
    if ask.api == "anthropic":
        pytest.skip("not tested: how litellm asks Anthropic for schemas differs by model")
    engine.script = json.dumps(PERSON, ensure_ascii=False)
    form = {"type": "json_schema", "json_schema": {"name": "Person", "schema": PERSON_SCHEMA, "strict": True}}
    answer = ask(response_format=form)
    assert json.loads(answer.choices[0].message.content) == PERSON
    grammar = engine.seen[0][1].grammar
    assert grammar.kind == "json_schema"
    assert json.loads(grammar.text) == PERSON_SCHEMA


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning(ask, engine, litellm, stream):
    engine.script = "<think>\nHm, 日本.\n</think>\n\nYes."
    more = _THINKING if ask.api == "anthropic" else {}
    answer = ask(stream=stream, **more)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    assert message.content == "Yes."
    assert message.reasoning_content.strip() == "Hm, 日本."


def test_stops(ask, engine):
    engine.script = "One, two, END three"
    answer = ask(stop=["END", "zebra"])
    assert answer.choices[0].message.content == "One, two, "
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs(ask, engine):
    if ask.api == "anthropic":
        pytest.skip("Anthropic's API has none")
    engine.script = "Yes, no."
    content = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(entry.token for entry in content[:-1]) == "Yes, no."
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert content[0].logprob == -0.5


def test_errors(ask, engine, litellm):
    for more, kind in (
        ({"temperature": -1}, litellm.BadRequestError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"model": f"{ask.api}/gpt-9"}, litellm.NotFoundError),
    ):
        for stream in (False, True):
            with pytest.raises(kind):
                ask(stream=stream, **more)
    assert engine.seen == []
    engine.busy = 1
    with pytest.raises(litellm.RateLimitError):
        ask()


def test_leaving_frees_the_request(ask, engine):
    engine.script, engine.pause_s = ENDLESS, 0.02
    stream = iter(ask(stream=True))
    next(stream)
    next(stream)
    inner = stream.completion_stream
    for name in (
        "response",
        "_response",
        "streaming_response",
    ):  # litellm's streams have no close of one name
        inner = getattr(inner, name, inner)
    inner.close()
    assert engine.was_aborted()


def test_embeddings(litellm, server):
    texts = [UNICODE, "b"]
    answer = litellm.embedding(
        model="openai/replay", input=texts, api_base=f"{server.embedder_url}/v1", api_key=KEY
    )
    assert [entry["embedding"] for entry in answer.data] == [vector(text) for text in texts]
    assert answer.usage.prompt_tokens == sum(int(vector(text)[1]) for text in texts)


def test_responses(litellm, server, engine):
    engine.script = UNICODE
    options = {"model": "openai/replay", "input": "Hi", "api_base": f"{server.url}/v1", "api_key": KEY}
    answer = litellm.responses(**options)
    assert answer.output[-1].content[0].text == UNICODE
    events = list(litellm.responses(**options, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == UNICODE
    assert events[-1].type == "response.completed"
