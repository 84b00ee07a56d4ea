"""The tool of type ``mcp`` in a body of /v1/responses: a server whose tools the model may call."""

from __future__ import annotations

from typing import Any, Literal

from llm_stack_server.schemas.fields import RequestBody


class ToolNames(RequestBody):
    """Tools by name."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalRules(RequestBody):
    """Which tools always wait for the client's approval, and which never do."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class McpTool(RequestBody):
    """One entry of ``tools``."""

    type: Literal["mcp"]
    server_label: str
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | ToolNames | None = None
    require_approval: Literal["always", "never"] | ApprovalRules | None = None
    authorization: str | None = None
    headers: dict[str, Any] | None = None
    connector_id: str | None = None

    def allows(self, name: str, *, read_only: bool) -> bool:
        """Whether the request lets the model call the tool."""
        allowed = self.allowed_tools
        if allowed is None:
            return True
        return name in allowed if isinstance(allowed, list) else _matches(allowed, name, read_only)

    def needs_approval(self, name: str, *, read_only: bool) -> bool:
        """Whether a call waits for the client: as OpenAI has it, unless the request says otherwise."""
        rules = self.require_approval
        if rules is None or isinstance(rules, str):
            return rules != "never"
        if rules.always is not None and _matches(rules.always, name, read_only):
            return True
        return rules.never is None or not _matches(rules.never, name, read_only)


def _matches(names: ToolNames, name: str, read_only: bool) -> bool:
    by_name = names.tool_names is None or name in names.tool_names
    return by_name and (names.read_only is None or names.read_only == read_only)
