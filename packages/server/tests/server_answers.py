"""Asks the generation routes, whole and streamed; both must fit OpenAI's types and each other."""

from __future__ import annotations

import json
from typing import Any

import httpx
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200}
HELLO = {"prompt": "Hello", "max_tokens": 200}


def client_of(engine: Any, **settings: Any) -> httpx.AsyncClient:
    """A client of the real application over `engine`."""
    app = create_app(ServerSettings(**settings), engine)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def whole(http, path, body) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    kind = ChatCompletion if path == CHAT else Completion
    kind.model_validate(response.json(), strict=True)
    return response.json()


async def streamed(http, path, body) -> list[dict[str, Any]]:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post(path, json=body | more)
    assert response.status_code == 200, response.text
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    for event in events:
        if path == CHAT:
            ChatCompletionChunk.model_validate(event, strict=True)
    return events


def text_of(choice) -> str:
    if "message" in choice:
        return choice["message"]["content"]
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


async def both(http, path, body) -> dict[str, Any]:
    """The whole answer's choice; the stream must tell the same."""
    answer = await whole(http, path, body)
    [choice] = answer["choices"]
    events = await streamed(http, path, body)
    parts = [part for event in events for part in event["choices"]]
    assert "".join(map(text_of, parts)) == text_of(choice)
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
    assert parts[-1]["stop_reason"] == choice["stop_reason"]
    assert events[-1]["usage"] == answer["usage"]
    return choice
