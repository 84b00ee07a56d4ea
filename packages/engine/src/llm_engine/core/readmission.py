"""Owns the way of requests into a core that goes on where another one ended; knows nothing of sockets.

Between the door and the core: it keeps back suspects, and requests that an earlier core had accepted and for
which the queue of this one has no room yet.
"""

import time
from collections import deque

import msgspec

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import Abort, AddRequest, StepOutputs
from llm_engine.core.step_journal import StepJournal
from llm_engine.core.suspicion import SuspectWard

_RETRY_S = 0.05


class Readmission:
    """Hands requests to the core, in order where nothing speaks against it.

    Args:
        core: Where they go.
        journal: Told what the core is about to take in.
        ward: Knows the suspects.
    """

    def __init__(self, core: EngineCore, journal: StepJournal, ward: SuspectWard) -> None:
        self._core = core
        self._journal = journal
        self._ward = ward
        self._resumed: dict[str, AddRequest] = {}
        self._no_room: deque[AddRequest] = deque()
        self._retry_at_s = 0.0

    def add(self, message: AddRequest) -> None:
        """A request has come."""
        if self._ward.admits(message):
            self._hand_over(message)

    def abort(self, message: Abort) -> None:
        """Requests are not wanted any more."""
        ended = set(message.request_ids)
        self._journal.settled(ended)
        self._clear(self._ward.abort(ended))
        if self._no_room:
            self._no_room = deque(one for one in self._no_room if one.request_id not in ended)
        for request_id in ended:
            self._resumed.pop(request_id, None)
        self._core.intake([message])
        self._next_on_trial()

    def take(self, outputs: StepOutputs) -> StepOutputs:
        """Look at a step's outputs; returns what the front ends are to know of them."""
        if self._resumed and outputs.refusals:
            outputs = self._without_full_queue(outputs)
        if not self._ward.is_idle:
            self._clear(self._ward.note(outputs))
            self._next_on_trial()
        if self._resumed:
            for row in outputs.rows:
                self._resumed.pop(row.request_id, None)
        if outputs.refusals:
            self._journal.settled(refusal.request_id for refusal in outputs.refusals)
        if self._no_room and time.monotonic() >= self._retry_at_s:
            self._hand_over(self._no_room.popleft())
        return outputs

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits here for room in the core's queue."""
        return bool(self._no_room)

    def _without_full_queue(self, outputs: StepOutputs) -> StepOutputs:
        refusals = []
        for refusal in outputs.refusals:
            message = self._resumed.get(refusal.request_id)
            if message is None or refusal.retry_after_s is None:
                refusals.append(refusal)
                self._resumed.pop(refusal.request_id, None)
            else:
                self._no_room.append(message)
                self._retry_at_s = time.monotonic() + _RETRY_S
        return msgspec.structs.replace(outputs, refusals=refusals)

    def _hand_over(self, message: AddRequest) -> None:
        if message.resumed:
            self._resumed[message.request_id] = message
        self._journal.arriving(message.request_id)
        self._core.intake([message])
        if message.params.grammar is None:
            self._journal.settled([message.request_id])

    def _clear(self, request_ids: list[str]) -> None:
        if request_ids:
            self._journal.clear(request_ids)

    def _next_on_trial(self) -> None:
        message = self._ward.next_on_trial()
        if message is not None:
            self._hand_over(message)
