"""The OpenAPI document, and the server held against it by schemathesis with bodies of its making."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from llm_stack_server.app import _GENERATING, _OTHERS, create_app
from llm_stack_server.settings import ServerSettings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_replay_engine import ReplayEngine

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


LIMITS = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,  # what CI does once it does again; the fuzzer looks for the new
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_server_does_as_its_document_says():
    engine = ReplayEngine()
    engine.script = "A short answer."
    api = schemathesis.openapi.from_asgi("/openapi.json", create_app(ServerSettings(web_page=False), engine))
    num_operations = 0
    for found in api.get_all_operations():
        operation = found.ok()
        num_operations += 1

        @LIMITS
        @given(case=operation.as_strategy())
        def holds(case):
            case.call_and_validate(checks=CHECKS)

        holds()
    assert num_operations > 25


@pytest.fixture
async def document(client):
    return (await client.get("/openapi.json")).json()


async def test_every_route_is_described(document):
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    routes = [route for module in (*_GENERATING, *_OTHERS) for route in module.router.routes]
    assert all(isinstance(route, APIRoute) for route in routes)
    served = {
        (route.path.replace(":path}", "}"), method.lower()) for route in routes for method in route.methods
    }
    assert described == served
    with_body = {path for path, method in described if "requestBody" in document["paths"][path][method]}
    posts = {path for path, method in served if method == "post"}
    # Uploads that are refused unread, and an empty body.
    bodiless = {"/v1/responses/{response_id}/cancel", *(path for path in posts if "/audio/" in path)}
    assert with_body == posts - bodiless


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("ChatRequest", {"messages": [{"role": "user", "content": "Hi"}]}, {"messages": []}),
        (
            "ChatRequest",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stop": ["a"]},
            {"messages": [{"role": "user", "content": 3}]},
        ),
        ("CompletionRequest", {"prompt": [[1, 2], [3]]}, {"prompt": {"a": 1}}),
        ("ResponsesRequest", {"input": "Hi"}, {"input": 7}),
        (
            "MessagesRequest",
            {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
            {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": 5}]},
        ),
        ("EmbeddingsRequest", {"input": [1, 2, 3]}, {"input": 1.5}),
        (
            "RerankRequest",
            {"query": "a", "documents": ["b", {"text": "c"}]},
            {"query": "a", "documents": "b"},
        ),
    ],
)
async def test_bodies_are_described_as_clients_write_them(document, name, good, bad):
    validator = Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})
    assert not list(validator.iter_errors(good))
    assert list(validator.iter_errors(bad))


async def test_a_key_is_asked_for():
    app = create_app(ServerSettings(api_key=("secret",)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        assert (await client.get("/openapi.json")).status_code == 401
        answer = await client.get("/openapi.json", headers={"authorization": "Bearer secret"})
        assert answer.json()["openapi"] == "3.1.0"
