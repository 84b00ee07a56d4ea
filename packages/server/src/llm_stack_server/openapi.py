"""The OpenAPI document: routes with their bodies and kinds of answers, as the code has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from llm_stack_server.routes import (
    chat,
    classify,
    completions,
    embeddings,
    messages,
    pooling,
    rerank,
    responses,
    score,
    tokenize,
)
from llm_stack_server.schemas.chat import ChatRequest
from llm_stack_server.schemas.completion import CompletionRequest
from llm_stack_server.schemas.fields import RequestBody
from llm_stack_server.schemas.messages import MessagesPrompt, MessagesRequest
from llm_stack_server.schemas.pooling import (
    ClassifyRequest,
    EmbeddingsRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from llm_stack_server.schemas.responses import ResponsesRequest
from llm_stack_server.schemas.tokenize import DetokenizeRequest, TokenizeRequest

_BODIES: Mapping[object, type[RequestBody]] = {
    chat.chat_completions: ChatRequest,
    completions.completions: CompletionRequest,
    responses.create: ResponsesRequest,
    messages.messages: MessagesRequest,
    messages.count_tokens: MessagesPrompt,
    embeddings.embeddings: EmbeddingsRequest,
    score.score: ScoreRequest,
    rerank.rerank: RerankRequest,
    classify.classify: ClassifyRequest,
    pooling.pooling: PoolingRequest,
    tokenize.tokenize: TokenizeRequest,
    tokenize.detokenize: DetokenizeRequest,
}
_ANTHROPIC = frozenset({messages.messages, messages.count_tokens})
_SCHEMAS = "#/components/schemas/"
_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
_METRICS = (_TEXT, "application/openmetrics-text")

_FAULT: Mapping[str, Any] = {
    "type": "object",
    "required": ["message", "type"],
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"], "description": "The field at fault."},
        "code": {"type": ["string", "null"], "description": "A stable short name of the fault."},
    },
}
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"$ref": _SCHEMAS + "Fault"}},
}
_ANTHROPIC_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {"type": {"const": "error"}, "error": {"$ref": _SCHEMAS + "Fault"}},
}


def openapi_document(routers: Iterable[APIRouter], version: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1.

    Args:
        routers: Those of the API.
        version: Of this package.
    """
    schemas: dict[str, Any] = {
        "Fault": _FAULT,
        "Error": _ERROR,
        "AnthropicError": _ANTHROPIC_ERROR,
    }
    paths: dict[str, dict[str, Any]] = {}
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = route.path.replace(":path}", "}")
            for method in sorted(route.methods or ()):
                paths.setdefault(path, {})[method.lower()] = _operation(route, method, path, schemas)
    bearer = {"type": "http", "scheme": "bearer", "description": "Where the server has keys."}
    key = {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "LLM Stack", "version": version},
        "paths": paths,
        "security": [{}, {"bearer": []}, {"key": []}],
        "components": {"schemas": schemas, "securitySchemes": {"bearer": bearer, "key": key}},
    }


def _operation(route: APIRoute, method: str, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = (inspect.getdoc(route.endpoint) or "").partition("\n\n")
    error = {"$ref": _SCHEMAS + ("AnthropicError" if route.endpoint in _ANTHROPIC else "Error")}
    fault = {"description": "What is wrong.", "content": {_JSON: {"schema": error}}}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{path.replace('{', '').replace('}', '').replace('/', '_')}",
        "summary": summary.replace("\n", " "),
        "responses": {"200": _answer(route, path), "4XX": fault, "5XX": fault},
    }
    if rest and not rest.startswith("Raises:"):
        operation["description"] = rest
    names = [name for name in route.param_convertors if "{" + name in path]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    body = _BODIES.get(route.endpoint)
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _schema_of(body, schemas)}},
        }
    return operation


def _answer(route: APIRoute, path: str) -> dict[str, Any]:
    if path == "/metrics":
        return {"description": "The metrics.", "content": {kind: {} for kind in _METRICS}}
    content: dict[str, Any] = {_JSON: {"schema": {"type": "object"}}}
    body = _BODIES.get(route.endpoint)
    if body is not None and "stream" in body.model_fields:
        content[_EVENTS] = {"schema": {"type": "string"}}
    return {"description": "The answer.", "content": content}


def _schema_of(body: type[RequestBody], schemas: dict[str, Any]) -> dict[str, str]:
    """A reference to the body's schema, which is added with all that it refers to."""
    schema = body.model_json_schema(ref_template=_SCHEMAS + "{model}")
    for name, value in {**schema.pop("$defs", {}), body.__name__: schema}.items():
        if schemas.setdefault(name, value) != value:
            raise AssertionError(f"two schemas are called {name}")
    return {"$ref": _SCHEMAS + body.__name__}
