"""The MCP server at ``/mcp``: one HTTP POST, one answer, no sessions. Knows nothing of what the tools do."""

from __future__ import annotations

import asyncio
import json
import logging

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from llm_stack_server.asgi import App, Message, Receive, Scope, Send
from llm_stack_server.batch.in_process import post
from llm_stack_server.context import Context
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.errors import ApiError, ClientDisconnected
from llm_stack_server.http_errors import error_response
from llm_stack_server.mcp_tools.tools import Json, RouteTool, tools_of

PATH = "/mcp"
_PASSED_ON = frozenset({b"authorization", b"x-api-key"})
_INSTRUCTIONS = "Tools of a language model server: ask its model, count tokens, or compare texts."

# It tells at each request that it begins and ends.
for _name in ("mcp.server.streamable_http_manager", "mcp.server.streamable_http"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class McpEndpoint:
    """Answers MCP hosts. Every tool call is a request to the application's own routes, in process.

    So a call has the checks, limits and metrics of its route, under the key of the host.
    """

    def __init__(self, app: App, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; when the host leaves, the work ends."""
        if scope["method"] != "POST":  # a GET would wait for messages that never come
            await _refuse_method(scope, receive, send)
            return
        try:
            self._context.lifecycle.require_engine()
            _check_media_type(scope)
            body = await _whole_body(receive)
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        manager = StreamableHTTPSessionManager(
            app=self._server(scope),
            json_response=True,
            stateless=True,
            # The application's own guards have seen host, origin and size.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=max(1, len(body)),
        )

        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        async def answer() -> None:
            async with manager.run():
                await manager.handle_request(scope, _replay(body), send_noted)

        try:
            await until_disconnect(receive, answer())
        except ClientDisconnected:
            if not has_begun:  # after a whole answer, web servers tell of a disconnect too
                raise

    def _server(self, scope: Scope) -> Server[Json]:
        headers = tuple((name, value) for name, value in scope["headers"] if name in _PASSED_ON)

        async def list_tools(_context: object, _params: PaginatedRequestParams | None) -> ListToolsResult:
            engine = self._context.lifecycle.require_engine()
            return ListToolsResult(tools=[_shown(tool) for tool in tools_of(engine)])

        async def call_tool(_context: object, params: CallToolRequestParams) -> CallToolResult:
            try:
                return await self._call(params, headers)
            except ApiError as error:
                return _failure(error.message)

        return Server(
            "llm-stack",
            version=self._context.package_version,
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )

    async def _call(
        self, params: CallToolRequestParams, headers: tuple[tuple[bytes, bytes], ...]
    ) -> CallToolResult:
        tools = tools_of(self._context.lifecycle.require_engine())
        tool = next((tool for tool in tools if tool.name == params.name), None)
        if tool is None:
            names = ", ".join(tool.name for tool in tools)
            return _failure(f"there is no tool {params.name[:100]!r}; there are {names}")
        body = json.dumps(tool.request(params.arguments or {})).encode()
        reply = await post(self._app, tool.route, body, headers)
        if not reply.is_ok:
            return _failure(str(reply.body.get("error", {}).get("message", reply.body)))
        found = tool.answer(reply.body)
        text = found.get("text")
        shown = text if isinstance(text, str) else json.dumps(found)
        return CallToolResult(content=[TextContent(type="text", text=shown)], structured_content=found)


def _shown(tool: RouteTool) -> Tool:
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema(),
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def _failure(message: str) -> CallToolResult:
    """An error that the host's model can read and correct."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def _check_media_type(scope: Scope) -> None:
    """Refuse here, in JSON, what the library would refuse as plain text.

    Raises:
        ApiError: 415.
    """
    given = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if given.split(b";")[0].strip().lower() != b"application/json":
        raise ApiError(415, "content-type must be application/json", code="unsupported_media_type")


async def _whole_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes) -> Receive:
    """The body once; then nothing, since leaving is watched for elsewhere."""
    waiting = [body]

    async def receive() -> Message:
        if not waiting:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": waiting.pop(), "more_body": False}

    return receive


async def _refuse_method(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(
        405,
        "MCP is spoken here by POST only: there are no sessions and no streams of events",
        code="method_not_allowed",
        headers={"allow": "POST"},
    )
    await error_response(error, scope)(scope, receive, send)
