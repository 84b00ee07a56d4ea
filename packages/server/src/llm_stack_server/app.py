"""Builds the application: routes, error handlers, guards. Knows nothing of sockets, signals or models."""

from __future__ import annotations

import json

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from llm_stack_server import http_errors
from llm_stack_server.asgi import App
from llm_stack_server.auth import ApiKeyMiddleware
from llm_stack_server.body_limit import BodyLimitMiddleware
from llm_stack_server.browser_guard import ANY_ORIGIN, BrowserGuard
from llm_stack_server.context import Context, Shared
from llm_stack_server.deadline import DeadlineMiddleware
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import StartupError
from llm_stack_server.lifecycle import AdmissionMiddleware
from llm_stack_server.observing.middleware import ObservingMiddleware, plain_paths_of
from llm_stack_server.openapi import openapi_document
from llm_stack_server.page_files import page_files, page_router
from llm_stack_server.pooling_calls import check_generates
from llm_stack_server.routes import (
    audio,
    chat,
    classify,
    completions,
    embeddings,
    health,
    messages,
    metrics,
    models,
    openapi,
    pooling,
    rerank,
    responses,
    score,
    tokenize,
)
from llm_stack_server.security_headers import SecurityHeadersMiddleware
from llm_stack_server.settings import ServerSettings
from llm_stack_server.usage_limits import UsageMiddleware

MCP_PATH = "/mcp"
_GENERATING = (chat, completions, messages, responses)
_OTHERS = (audio, embeddings, score, rerank, classify, pooling, models, tokenize, health, metrics, openapi)
# What a page may read of an answer's headers.
_EXPOSED_HEADERS = (
    "retry-after",
    "x-ignored-fields",
    "x-request-id",
    *(
        f"x-ratelimit-{part}-{kind}"
        for part in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)


def create_app(
    settings: ServerSettings, engine: Engine | None = None, shared: Shared | None = None
) -> FastAPI:
    """The application.

    Args:
        settings: The server's options.
        engine: A running engine; where it is None, all routes but the probes answer 503 until
            ``app.state.context.lifecycle.attach`` gets one.
        shared: What it has in common with other front ends of the same server; None: it is alone.

    Raises:
        StartupError: an API key is empty or its file cannot be read, or MCP is not installed.
    """
    context = Context(settings=settings, shared=shared)
    if engine is not None:
        context.lifecycle.attach(engine)
    app = FastAPI(title="LLM Stack", openapi_url=None, redirect_slashes=False)
    app.state.context = context
    for module in _GENERATING:
        app.include_router(module.router, dependencies=[Depends(check_generates)])
    for module in _OTHERS:
        app.include_router(module.router)
    described = [module.router for module in (*_GENERATING, *_OTHERS)]
    app.state.openapi = json.dumps(openapi_document(described, context.package_version)).encode()
    page = page_files() if settings.web_page else {}
    app.include_router(page_router(page))
    if settings.mcp:
        app.router.routes.append(Route(MCP_PATH, _mcp_endpoint(app, context)))
    http_errors.install(app)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimitMiddleware,
        limit_bytes=settings.max_body_bytes,
        timeout_s=settings.body_timeout_s,
        budget_bytes=settings.max_total_body_bytes,
        on_refusal=context.metrics.refused.labels("too_many_body_bytes").inc,
    )
    app.add_middleware(UsageMiddleware, limits=context.usage)
    app.add_middleware(DeadlineMiddleware, metrics=context.metrics, max_s=settings.max_request_s)
    app.add_middleware(AdmissionMiddleware, lifecycle=context.lifecycle)
    app.add_middleware(ApiKeyMiddleware, keys=context.keys, open_paths=frozenset(page))
    app.add_middleware(
        BrowserGuard, keys=context.keys, origins=settings.cors_origin, hosts=settings.allowed_host
    )
    if settings.cors_origin:
        # Never with credentials: keys are sent by the page's own program, not by the browser.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=(ANY_ORIGIN,),
            expose_headers=_EXPOSED_HEADERS,
        )
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(
        ObservingMiddleware,
        journal=context.journal,
        answers=context.metrics.http_requests,
        plain_paths=[path for router in described for path in plain_paths_of(router)],
    )
    return app


def _mcp_endpoint(app: FastAPI, context: Context) -> App:
    try:
        from llm_stack_server.mcp_tools.endpoint import McpEndpoint  # mcp is an extra
    except ImportError as error:
        raise StartupError(f"mcp: MCP is not installed ({error}): install llm-stack-server[mcp]") from None
    return McpEndpoint(app, context)
