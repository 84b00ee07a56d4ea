"""Keeps responses in memory, bounded in number and size. Holds bytes and understands none of them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from llm_stack_server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """One response as it is kept.

    Attributes:
        owner: Whose it is: the digest of an API key, "" without keys.
        data: The response with its items, as JSON.
        is_running: Whether it is still worked at, in the background.
        is_lost: Whether the process that worked at it has died.
    """

    owner: str
    data: bytes
    is_running: bool = False
    is_lost: bool = False


class ResponseStore:
    """The newest responses; the ones used longest ago go first, but none that is worked at."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept."""
        return self._num_bytes

    def put(self, response_id: str, kept: KeptResponse) -> None:
        """Keep a response, or its newer state."""
        self.remove(response_id)
        self._kept[response_id] = kept
        self._num_bytes += len(kept.data)
        while len(self._kept) > self._max_responses or self._num_bytes > self._max_bytes:
            oldest = next((key for key, one in self._kept.items() if not one.is_running), None)
            if oldest is None:
                break
            self.remove(oldest)

    def get(self, response_id: str, owner: str) -> KeptResponse | None:
        """The response, if it is kept and belongs to ``owner``."""
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return kept

    def remove(self, response_id: str) -> None:
        """Forget a response."""
        kept = self._kept.pop(response_id, None)
        if kept is not None:
            self._num_bytes -= len(kept.data)


def response_store_of(settings: ServerSettings) -> ResponseStore:
    """A store with the limits of the options."""
    return ResponseStore(settings.max_stored_responses, settings.max_stored_response_bytes)
