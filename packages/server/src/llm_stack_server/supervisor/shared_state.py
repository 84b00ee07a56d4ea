"""What all workers share, kept by the supervisor: places and rates, stored responses, metrics, core totals.

A `Desk` serves one worker for as long as it lives. When it dies, its places are given back, the responses
that it worked at are marked as lost, and its counters are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from llm_stack_server.core_totals import CoreTotals
from llm_stack_server.errors import ApiError
from llm_stack_server.fair_queue import Turn
from llm_stack_server.metric_families import MergedFamilies
from llm_stack_server.response_store import KeptResponse, ResponseStore
from llm_stack_server.supervisor.channel import Channel, ChannelClosed
from llm_stack_server.supervisor.messages import (
    Answer,
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
    Measure,
    Measured,
    PutResponse,
    Question,
    RemoveResponse,
    Serving,
    Spend,
    Told,
)
from llm_stack_server.usage_ledger import LocalLedger

_MEASURE_S = 0.5  # for a worker to tell its metrics; after it, those that it told last stand


class SharedState:
    """The state. Belongs to the supervisor's event loop."""

    def __init__(self, ledger: LocalLedger, store: ResponseStore) -> None:
        self.ledger = ledger
        self.store = store
        self.metrics = MergedFamilies()
        self.totals = CoreTotals()
        self.desks: dict[int, Desk] = {}

    async def measure_all(self, but: int) -> None:
        """Ask all workers but one for their metrics; one that does not answer soon keeps its last ones."""
        others = [desk for number, desk in self.desks.items() if number != but]
        await asyncio.gather(*(desk.measure() for desk in others))

    def worker_of(self, response_id: str) -> Desk | None:
        """Who works at a response."""
        return next((desk for desk in self.desks.values() if response_id in desk.responses), None)


class Desk:
    """Serves one worker. Implements `channel.ChannelOwner`.

    Args:
        state: What is shared.
        number: The worker's.
        channel: The way to it.
        serving: Called when the worker says that it takes requests.
        alive: Called at each sign of life.

    Attributes:
        responses: Ids of the responses that it works at.
    """

    def __init__(
        self,
        state: SharedState,
        number: int,
        channel: Channel,
        serving: Callable[[Serving], None],
        alive: Callable[[], None],
    ) -> None:
        self._state = state
        self._number = number
        self._channel = channel
        self._serving = serving
        self._alive = alive
        self._places: dict[int, Turn | asyncio.Task[None]] = {}
        self.responses: dict[str, str] = {}  # with their owners
        state.desks[number] = self

    async def serve(self) -> None:
        """Serve the worker until it is gone, then take back what it held."""
        try:
            await self._channel.run(self)
        finally:
            self._close()

    async def measure(self) -> None:
        """Get the worker's metrics as they are now."""
        with contextlib.suppress(TimeoutError, ChannelClosed, ApiError):
            async with asyncio.timeout(_MEASURE_S):
                answer = await self._channel.ask(Measure())
            if isinstance(answer, Measured):
                self.hear(answer)

    async def cancel(self, response_id: str) -> None:
        """Have the worker end its work at a response."""
        with contextlib.suppress(ChannelClosed):  # then it has ended
            await self._channel.ask(CancelResponse(response_id))

    def hear(self, message: Told) -> None:
        """Take in what the worker says."""
        state = self._state
        match message:
            case Measured():
                if state.desks.get(self._number) is self:
                    state.metrics.note(self._number, message.families)
                self._alive()
            case CoreSeen():
                state.totals.note(message.generation, message.stats)
            case Spend():
                state.ledger.spend(message.key, message.num_tokens)
            case Leave():
                self._leave(message.place)
            case Serving():
                self._serving(message)

    async def answer(self, question: Question) -> Answer:
        """Answer what the worker asks."""
        state = self._state
        match question:
            case Begin():
                await state.ledger.begin(question.key)
                return Known(state.ledger.levels(question.key))
            case Enter():
                await self._enter(question)
                return Known(state.ledger.levels(question.key))
            case Gather():
                state.metrics.note(self._number, question.families)
                if question.stats is not None:
                    state.totals.note(question.generation, question.stats)
                await state.measure_all(but=self._number)
                return Gathered(state.metrics.families(), state.totals.totals)
            case PutResponse():
                self._put(question)
            case GetResponse():
                kept = state.store.get(question.response_id, question.owner)
                return None if kept is None else Found(kept.owner, kept.data, kept.is_running, kept.is_lost)
            case RemoveResponse():
                state.store.remove(question.response_id)
            case CancelResponse():
                worker = state.worker_of(question.response_id)
                if worker is not None:
                    await worker.cancel(question.response_id)
        return None

    async def _enter(self, wanted: Enter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._places[wanted.place] = task
        try:
            turn = await self._state.ledger.enter(wanted.key, wanted.size, wanted.num_tokens, wanted.weight)
        except BaseException:
            self._places.pop(wanted.place, None)
            raise
        self._places[wanted.place] = turn

    def _leave(self, place: int) -> None:
        match self._places.pop(place, None):
            case Turn() as turn:
                self._state.ledger.leave(turn)
            case asyncio.Task() as waiting:
                waiting.cancel()
            case None:
                pass  # it was refused meanwhile

    def _put(self, put: PutResponse) -> None:
        kept = KeptResponse(owner=put.owner, data=put.data, is_running=put.is_running)
        self._state.store.put(put.response_id, kept)
        if put.is_running:
            self.responses[put.response_id] = put.owner
        else:
            self.responses.pop(put.response_id, None)

    def _close(self) -> None:
        state = self._state
        for place in list(self._places):
            self._leave(place)
        for response_id, owner in self.responses.items():
            kept = state.store.get(response_id, owner)
            if kept is not None:
                state.store.put(response_id, replace(kept, is_running=False, is_lost=True))
        self.responses.clear()
        if state.desks.get(self._number) is self:
            del state.desks[self._number]
            state.metrics.retire(self._number)
