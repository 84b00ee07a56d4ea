"""Keeps responses in memory for clients to read, continue and cancel. Bounded in number and size."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from llm_stack_server.schemas.responses import Item


@dataclass(slots=True)
class StoredResponse:
    """One response.

    Attributes:
        owner: Whose it is: the digest of an API key, "" without keys.
        response: The response object as the client gets it.
        items: All items of the conversation before it, its own input included.
        task: The work in the background, or None.
    """

    owner: str
    response: dict[str, Any]
    items: list[Item]
    task: asyncio.Task[None] | None = None
    num_bytes: int = field(default=0)


class ResponseStore:
    """The newest responses; the ones used longest ago go first. Belongs to one event loop."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def num_bytes(self) -> int:
        """Bytes of JSON that are kept."""
        return self._num_bytes

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state."""
        response_id = stored.response["id"]
        self.remove(response_id)
        items = [item.model_dump(exclude_none=True) for item in stored.items]
        stored.num_bytes = len(json.dumps((stored.response, items), ensure_ascii=False).encode())
        self._stored[response_id] = stored
        self._num_bytes += stored.num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            oldest = next((key for key, kept in self._stored.items() if kept.task is None), None)
            if oldest is None:
                break
            self.remove(oldest)

    def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response, if it is kept and belongs to ``owner``."""
        stored = self._stored.get(response_id)
        if stored is None or stored.owner != owner:
            return None
        self._stored.move_to_end(response_id)
        return stored

    def remove(self, response_id: str) -> None:
        """Forget a response."""
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes
