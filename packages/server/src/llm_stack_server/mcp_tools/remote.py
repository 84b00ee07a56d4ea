"""Other MCP servers: which ones the operator allows, their tools, calls to them. Knows no answer format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llm_stack_server.errors import ApiError, InvalidField, StartupError, UnsupportedField
from llm_stack_server.http_errors import from_validation
from llm_stack_server.schemas.mcp import McpTool
from llm_stack_server.schemas.tools import MAX_TOOLS, FunctionSpec, Tool

_LIST_S = 20.0
_CALL_S = 60.0
_MAX_OUTPUT_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool that the model may call.

    Attributes:
        label: Its server's label.
        spec: The tool as the model is told of it.
        needs_approval: A call waits for the client.
        shown: As a client is told of it.
    """

    label: str
    spec: Tool
    needs_approval: bool
    shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of a call: its output, or why there is none."""

    output: str | None
    error: str | None = None


class AllowedServers:
    """The servers that the operator named. No request can make this server call any other address."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls

    def checked(self, index: int, raw: Mapping[str, Any]) -> McpTool:
        """The entry ``tools[index]`` of a body.

        Raises:
            InvalidField: a field is wrong, or its server is not one of these.
            UnsupportedField: a field that cannot be honoured.
        """
        place = f"tools[{index}]"
        try:
            tool = McpTool.model_validate(dict(raw))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = f"{place}.{first['loc'][0]}"  # not deeper: places within unions are named oddly
            raise InvalidField(field, f"{field}: {first['msg']}") from None
        for name in ("headers", "connector_id"):
            if getattr(tool, name):
                raise UnsupportedField(f"{place}.{name}")
        if tool.server_label not in self._urls:
            known = ", ".join(self._urls) or "none"
            raise InvalidField(
                f"{place}.server_label",
                f"{place}.server_label: {tool.server_label[:100]!r} is none of the servers that the operator "
                f"allows ({known}); see --mcp-server",
            )
        if tool.server_url is not None and tool.server_url != self._urls[tool.server_label]:
            raise InvalidField(
                f"{place}.server_url",
                f"{place}.server_url: is not the URL that the operator gave for {tool.server_label!r}",
            )
        return tool

    async def tools(self, tool: McpTool) -> list[RemoteTool]:
        """The tools of a server that a request lets the model call.

        Raises:
            ApiError: 424: the server does not answer, or with what cannot be used.
        """
        label = tool.server_label
        try:
            async with asyncio.timeout(_LIST_S), _client(self._urls[label], tool.authorization) as client:
                found, cursor = [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                    if len(found) > MAX_TOOLS:
                        raise _failed(label, f"it has more than {MAX_TOOLS} tools")
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever another machine does is told as one fault
            raise _failed(label, _reason(error)) from None
        return [remote for one in found if (remote := _remote(tool, one)) is not None]

    async def call(self, tool: McpTool, name: str, arguments: str) -> CallResult:
        """Call a tool. Faults of all kinds are results, for the model to read."""
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            return CallResult(None, "the arguments are no JSON")
        if not isinstance(given, dict):
            return CallResult(None, "the arguments must be a JSON object")
        url = self._urls[tool.server_label]
        try:
            async with asyncio.timeout(_CALL_S), _client(url, tool.authorization) as client:
                answer = await client.call_tool(name, given)
        except Exception as error:  # noqa: BLE001 -- whatever another machine does is told to the model
            return CallResult(None, _reason(error))
        text = "\n".join(part.text for part in answer.content if part.type == "text")
        if not text and answer.structured_content is not None:
            text = json.dumps(answer.structured_content, ensure_ascii=False)
        if len(text) > _MAX_OUTPUT_CHARS:
            return CallResult(None, f"the result has more than {_MAX_OUTPUT_CHARS} characters")
        return CallResult(None, text or "the tool failed") if answer.is_error else CallResult(text)


def allowed_servers(entries: Sequence[str]) -> dict[str, str]:
    """Labels and URLs of ``LABEL=URL`` entries.

    Raises:
        StartupError: an entry is wrong, or the library is not installed.
    """
    urls: dict[str, str] = {}
    for entry in entries:
        label, separator, url = entry.partition("=")
        if not (separator and label and url.startswith(("http://", "https://"))):
            raise StartupError(f"mcp_server: must be LABEL=http://... or LABEL=https://..., got {entry!r}")
        if label in urls:
            raise StartupError(f"mcp_server: the label {label!r} stands twice")
        urls[label] = url
    if urls:
        try:
            import mcp.client.client  # noqa: F401 -- mcp is an extra
        except ImportError as error:
            raise StartupError(
                f"mcp_server: MCP is not installed ({error}): install llm-stack-server[mcp]"
            ) from None
    return urls


@asynccontextmanager
async def _client(url: str, authorization: str | None) -> AsyncGenerator[Any, None]:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {} if authorization is None else {"authorization": f"Bearer {authorization}"}
    # No proxy of the environment: the operator named this address and no other.
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_CALL_S, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def _remote(tool: McpTool, found: Any) -> RemoteTool | None:  # noqa: ANN401 -- mcp is an extra
    read_only = bool(found.annotations is not None and found.annotations.read_only_hint)
    if not tool.allows(found.name, read_only=read_only):
        return None
    try:
        function = FunctionSpec(name=found.name, description=found.description, parameters=found.input_schema)
    except ValidationError as error:
        raise _failed(tool.server_label, f"its tool {found.name[:100]!r}: {from_validation(error)}") from None
    shown = {
        "name": found.name,
        "description": found.description,
        "input_schema": found.input_schema,
        "annotations": {"read_only": read_only},
    }
    needs_approval = tool.needs_approval(found.name, read_only=read_only)
    return RemoteTool(tool.server_label, Tool(type="function", function=function), needs_approval, shown)


def _failed(label: str, reason: str) -> ApiError:
    return ApiError(
        424,
        f"the MCP server {label!r} could not be used: {reason}",
        error_type="server_error",
        param="tools",
        code="mcp_server_failed",
    )


def _reason(error: BaseException) -> str:
    """The innermost fault, in short: the library wraps them in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
