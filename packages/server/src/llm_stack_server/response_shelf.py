"""How routes keep, read and cancel responses, wherever the store is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_stack_server.response_store import KeptResponse, ResponseStore
from llm_stack_server.schemas.responses import Item


@dataclass(slots=True)
class StoredResponse:
    """One response.

    Attributes:
        owner: Whose it is: the digest of an API key, "" without keys.
        response: The response object as the client gets it.
        items: All items of the conversation before it, its own input included.
        is_running: Whether it is still worked at, in the background.
    """

    owner: str
    response: dict[str, Any]
    items: list[Item]
    is_running: bool = False

    @property
    def response_id(self) -> str:
        """Its id."""
        found: str = self.response["id"]
        return found

    def kept(self) -> KeptResponse:
        """As it is kept."""
        items = [item.model_dump(exclude_none=True) for item in self.items]
        data = json.dumps((self.response, items), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return KeptResponse(owner=self.owner, data=data, is_running=self.is_running)

    @classmethod
    def read(cls, kept: KeptResponse) -> StoredResponse:
        """As it was. One whose process died has failed."""
        response, items = json.loads(kept.data.decode("utf-8", "surrogatepass"))
        if kept.is_lost:
            error = {"code": "server_error", "message": "the process that worked at this response died"}
            response |= {"status": "failed", "error": error}
        return cls(kept.owner, response, [Item.model_validate(item) for item in items], kept.is_running)


@dataclass(slots=True)
class BackgroundRuns:
    """The responses that this process works at in the background, by id."""

    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def start(self, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin."""
        task = asyncio.ensure_future(work)
        self._tasks[response_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(response_id, None))

    async def cancel(self, response_id: str) -> None:
        """End one, and wait until its end is kept; one that has ended is left as it is."""
        task = self._tasks.get(response_id)
        if task is not None:
            await asyncio.sleep(0)  # one that never ran could not keep its end
            task.cancel()
            await asyncio.wait({task})


class ResponseShelf(Protocol):
    """How routes reach the store. Errors are `ApiError`."""

    async def put(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state."""
        ...

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response, if it is kept and belongs to ``owner``."""
        ...

    async def remove(self, response_id: str) -> None:
        """Forget a response."""
        ...

    async def cancel(self, response_id: str) -> None:
        """End its work in the background, wherever that runs, and wait until its end is kept."""
        ...


class LocalShelf:
    """A store in this process."""

    def __init__(self, store: ResponseStore, runs: BackgroundRuns) -> None:
        self.store = store
        self._runs = runs

    async def put(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state."""
        self.store.put(stored.response_id, stored.kept())

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response, if it is kept and belongs to ``owner``."""
        kept = self.store.get(response_id, owner)
        return None if kept is None else StoredResponse.read(kept)

    async def remove(self, response_id: str) -> None:
        """Forget a response."""
        self.store.remove(response_id)

    async def cancel(self, response_id: str) -> None:
        """End its work in the background."""
        await self._runs.cancel(response_id)
