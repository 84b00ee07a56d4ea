"""A worker's hold on what the supervisor keeps: the ledger, the stored responses, everybody's metrics."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from llm_engine.stats import EngineStats

from llm_stack_server.metric_families import Family
from llm_stack_server.response_shelf import StoredResponse
from llm_stack_server.response_store import KeptResponse
from llm_stack_server.supervisor.channel import Channel
from llm_stack_server.supervisor.messages import (
    Begin,
    CancelResponse,
    CoreSeen,
    Enter,
    Found,
    Gather,
    Gathered,
    GetResponse,
    Known,
    Leave,
    PutResponse,
    RemoveResponse,
    Spend,
)
from llm_stack_server.usage_ledger import Levels, Place

_SPEND_S = 0.1  # tokens are told together


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A place that the supervisor's ledger gave."""

    number: int
    size: int


class RemoteLedger:
    """The server's ledger, seen from a worker. Implements `usage_ledger.Ledger`.

    `num_running` and the others tell of this worker's calls; the sums over the workers are the server's.

    Args:
        channel: The way to the supervisor.
        counts_requests: Whether there is a rate of requests.
        counts_tokens: Whether there is a rate of tokens.
        has_places: Whether places are limited. Where nothing is, nothing is asked.
    """

    def __init__(
        self, channel: Channel, *, counts_requests: bool, counts_tokens: bool, has_places: bool
    ) -> None:
        self._channel = channel
        self._counts_requests = counts_requests
        self._counts_tokens = counts_tokens
        self._has_places = has_places
        self._levels: dict[str, Levels] = {}
        self._numbers = itertools.count()
        self._unsaid: dict[str, int] = {}
        self.num_running = 0
        self.num_waiting = 0
        self.num_waiting_tokens = 0

    def levels(self, key: str) -> Levels:
        """The key's rates, as of the supervisor's latest answer."""
        return self._levels.get(key, Levels())

    async def begin(self, key: str) -> None:
        """Count a request."""
        if self._counts_requests or self._counts_tokens:  # the levels of both stand in the answer's headers
            self._note(key, await self._channel.ask(Begin(key)))

    async def enter(self, key: str, size: int, num_tokens: int, weight: int = 1) -> RemotePlace:
        """Wait for a place."""
        place = RemotePlace(next(self._numbers), size)
        if self._has_places or self._counts_tokens:
            self.num_waiting += 1
            self.num_waiting_tokens += num_tokens
            try:
                wanted = Enter(place.number, key, size, num_tokens, weight)
                self._note(key, await self._channel.ask(wanted))
            except asyncio.CancelledError:
                self._channel.tell(Leave(place.number))  # it may have been granted meanwhile
                raise
            finally:
                self.num_waiting -= 1
                self.num_waiting_tokens -= num_tokens
        self.num_running += size
        return place

    def spend(self, key: str, num_tokens: int) -> None:
        """Count tokens known only after the work."""
        if not self._counts_tokens:
            return
        if not self._unsaid:
            asyncio.get_running_loop().call_later(_SPEND_S, self._say_spent)
        self._unsaid[key] = self._unsaid.get(key, 0) + num_tokens

    def leave(self, place: Place) -> None:
        """Give a place back."""
        assert isinstance(place, RemotePlace)
        self._say_spent()
        self.num_running -= place.size
        if self._has_places or self._counts_tokens:
            self._channel.tell(Leave(place.number))

    def _say_spent(self) -> None:
        for key, num_tokens in self._unsaid.items():
            self._channel.tell(Spend(key, num_tokens))
        self._unsaid.clear()

    def _note(self, key: str, answer: object) -> None:
        assert isinstance(answer, Known)
        self._levels[key] = answer.levels


class RemoteShelf:
    """The server's stored responses, seen from a worker. Implements `response_store.ResponseShelf`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def put(self, stored: StoredResponse) -> None:
        """Keep a response, or its newer state."""
        kept = stored.kept()
        await self._channel.ask(PutResponse(stored.response_id, kept.owner, kept.data, kept.is_running))

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response, if it is kept and belongs to ``owner``."""
        answer = await self._channel.ask(GetResponse(response_id, owner))
        if answer is None:
            return None
        assert isinstance(answer, Found)
        kept = KeptResponse(
            owner=answer.owner, data=answer.data, is_running=answer.is_running, is_lost=answer.is_lost
        )
        return StoredResponse.read(kept)

    async def remove(self, response_id: str) -> None:
        """Forget a response."""
        await self._channel.ask(RemoveResponse(response_id))

    async def cancel(self, response_id: str) -> None:
        """End the work at a response, whichever worker does it."""
        await self._channel.ask(CancelResponse(response_id))


class RemoteMetrics:
    """Everybody's metrics, seen from a worker. Implements `context.MetricsHub`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def note_core(self, generation: int, stats: EngineStats) -> None:
        """Tell what a core has counted."""
        self._channel.tell(CoreSeen(generation, stats))

    async def gather(
        self, families: list[Family], generation: int, stats: EngineStats | None
    ) -> tuple[list[Family], EngineStats]:
        """The metrics of all workers with this one's ``families``, and the totals of all cores."""
        answer = await self._channel.ask(Gather(families, generation, stats))
        assert isinstance(answer, Gathered)
        return answer.families, answer.totals
