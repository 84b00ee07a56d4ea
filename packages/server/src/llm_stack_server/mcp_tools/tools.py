"""The tools that MCP hosts get: schemas, and how a call becomes a request of a route. Knows no protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import InvalidField
from llm_stack_server.pooling_port import PoolingEngine, routes_of

Json = dict[str, Any]

_SAMPLING: Mapping[str, Json] = {
    "max_tokens": {"type": "integer", "minimum": 1, "description": "Most tokens of the answer."},
    "temperature": {"type": "number", "minimum": 0, "description": "0 for the likeliest answer."},
    "top_p": {"type": "number"},
    "seed": {"type": "integer", "description": "The same seed gives the same answer."},
    "stop": {"type": "array", "items": {"type": "string"}, "description": "Texts before which to stop."},
}
_TEXTS: Json = {"type": "array", "items": {"type": "string"}, "minItems": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTool:
    """A tool that posts to a route.

    Attributes:
        name: What hosts call it.
        description: What it does, for the model that decides to use it.
        properties: Its arguments, as JSON schemas.
        required: Those that must be given.
        route: Where its request goes.
        body: The request's body for checked arguments.
        answer: What a host gets of the route's answer; its ``text`` is also shown as text.
    """

    name: str
    description: str
    properties: Mapping[str, Json]
    required: tuple[str, ...]
    route: str
    body: Callable[[Json], Json]
    answer: Callable[[Json], Json]

    def schema(self) -> Json:
        """The JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }

    def request(self, arguments: Json) -> Json:
        """The body for ``arguments``; their types are for the route to check.

        Raises:
            InvalidField: an argument is unknown or missing.
        """
        for name in arguments:
            if name not in self.properties:
                known = ", ".join(self.properties)
                raise InvalidField(name[:100], f"{self.name} has no argument {name[:100]!r}; it has {known}")
        for name in self.required:
            if name not in arguments:
                raise InvalidField(name, f"{name} is required")
        return self.body(arguments)


def tools_of(engine: Engine) -> tuple[RouteTool, ...]:
    """The tools that the model can answer."""
    if isinstance(engine, PoolingEngine):
        offered = routes_of(engine.info)
        return (*(tool for tool in _POOLING if tool.route in offered), _COUNT)
    chat = () if engine.tokenizer.chat_template is None else (_CHAT,)
    return (*chat, _COMPLETE, _COUNT)


def _chat_body(arguments: Json) -> Json:
    messages = arguments.get("messages")
    if (messages is None) == ("prompt" not in arguments):
        raise InvalidField("prompt", "give either prompt or messages")
    turns = messages if messages is not None else [{"role": "user", "content": arguments["prompt"]}]
    if "system" in arguments and isinstance(turns, list):
        turns = [{"role": "system", "content": arguments["system"]}, *turns]
    body = {name: arguments[name] for name in _SAMPLING if name in arguments} | {"messages": turns}
    if "json_schema" in arguments:
        schema = {"name": "answer", "schema": arguments["json_schema"]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _chat_answer(answer: Json) -> Json:
    [choice] = answer["choices"]
    message = choice["message"]
    thought = message.get("reasoning_content")
    more = {"reasoning": thought} if thought else {}
    return {"text": message["content"] or "", **more, **_end(choice, answer)}


def _completion_answer(answer: Json) -> Json:
    [choice] = answer["choices"]
    return {"text": choice["text"], **_end(choice, answer)}


def _end(choice: Json, answer: Json) -> Json:
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return {"finish_reason": choice["finish_reason"], "usage": usage}


def _ranked(answer: Json) -> Json:
    found = [{"index": one["index"], "relevance_score": one["relevance_score"]} for one in answer["results"]]
    return {"results": found}


_CHAT = RouteTool(
    name="chat",
    description="Ask the language model a question, or continue a conversation, and get its answer.",
    properties={
        "prompt": {"type": "string", "description": "The question. Give this or messages."},
        "messages": {
            "type": "array",
            "minItems": 1,
            "description": "The conversation so far.",
            "items": {
                "type": "object",
                "properties": {
                    "role": {"type": "string", "enum": ["system", "user", "assistant"]},
                    "content": {"type": "string"},
                },
                "required": ["role", "content"],
            },
        },
        "system": {"type": "string", "description": "Instructions that come first."},
        "json_schema": {"type": "object", "description": "The answer is then JSON that follows this schema."},
        **_SAMPLING,
    },
    required=(),
    route="/v1/chat/completions",
    body=_chat_body,
    answer=_chat_answer,
)
_COMPLETE = RouteTool(
    name="complete",
    description="Let the language model continue a text, without any chat template.",
    properties={"prompt": {"type": "string", "description": "The text to continue."}, **_SAMPLING},
    required=("prompt",),
    route="/v1/completions",
    body=dict,
    answer=_completion_answer,
)
_COUNT = RouteTool(
    name="count_tokens",
    description="Count the tokens that a text has for the model; tells the longest context too.",
    properties={"text": {"type": "string"}},
    required=("text",),
    route="/tokenize",
    body=lambda arguments: {"prompt": arguments["text"]},
    answer=lambda answer: {"count": answer["count"], "max_model_len": answer["max_model_len"]},
)
_POOLING = (
    RouteTool(
        name="embed",
        description="Turn texts into vectors; near vectors stand for similar texts.",
        properties={"texts": _TEXTS, "dimensions": {"type": "integer", "minimum": 1}},
        required=("texts",),
        route="/v1/embeddings",
        body=lambda arguments: {
            "input" if name == "texts" else name: value for name, value in arguments.items()
        },
        answer=lambda answer: {"embeddings": [one["embedding"] for one in answer["data"]]},
    ),
    RouteTool(
        name="rerank",
        description="Sort documents by how well they answer a query.",
        properties={
            "query": {"type": "string"},
            "documents": _TEXTS,
            "top_n": {"type": "integer", "minimum": 1},
        },
        required=("query", "documents"),
        route="/v1/rerank",
        body=dict,
        answer=_ranked,
    ),
)
