"""Owns the judgement of requests whose steps the core died in; knows nothing of processes or of steps.

A request that kills the core does so again where it goes on, within a few tokens. So:

1. A death counts against every request that ran then. One that has gained `PROOF_TOKENS` tokens since its
   core started has passed the place where it stood: what counted against it is forgotten first.
2. Requests with fewer than `quarantine_after` deaths go on at once, all together.
3. Those with as many or more are suspects: the next core runs one of them at a time, beside all others,
   until it has passed. Where the core dies meanwhile, the only suspect that ran is the one.
4. Where only one request has as many deaths to begin with, it is the one at once.

With one such request among any number this takes `quarantine_after` + 1 deaths at most, and nobody else ends.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from llm_engine.core.core_state import CoreOrders
from llm_engine.core.messages import AddRequest, StepOutputs
from llm_engine.core.step_journal import JournalEntry

PROOF_TOKENS = 8


class DeathLedger:
    """The host's side: what counts against whom, from core to core.

    Args:
        quarantine_after: Deaths at which a request is suspected.
    """

    def __init__(self, quarantine_after: int) -> None:
        self._limit = quarantine_after
        self._deaths: dict[str, int] = {}

    def note_death(self, entry: JournalEntry) -> dict[str, str]:
        """Count a death.

        Returns:
            The requests that are not to run again, with the reason: one, or none.
        """
        for request_id in entry.cleared:
            self._deaths.pop(request_id, None)
        on_trial = [one for one in entry.running if self._deaths.get(one, 0) >= self._limit]
        for request_id in entry.running:
            self._deaths[request_id] = self._deaths.get(request_id, 0) + 1
        accused = on_trial or [one for one in entry.running if self._deaths[one] >= self._limit]
        if len(accused) != 1:
            return {}
        deaths = self._deaths.pop(accused[0])
        reason = f"quarantined: the engine core died {deaths} times in a step with this request"
        return {accused[0]: reason}

    def orders(self) -> CoreOrders:
        """What the next core is to do with those who are not cleared."""
        grave = [one for one, deaths in self._deaths.items() if deaths >= self._limit]
        return CoreOrders(suspects=list(self._deaths), one_at_a_time=grave)


class SuspectWard:
    """A core's side: lets suspects run one at a time, and notes who has passed.

    Args:
        orders: From the host.
    """

    def __init__(self, orders: CoreOrders) -> None:
        self._gained = dict.fromkeys(orders.suspects, 0)
        self._grave = set(orders.one_at_a_time)
        self._held: deque[AddRequest] = deque()
        self._on_trial: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody is suspected any more."""
        return not self._gained

    def admits(self, message: AddRequest) -> bool:
        """Whether a request may run now; else it is kept here until its turn."""
        if message.request_id not in self._grave:
            return True
        if self._on_trial is None:
            self._on_trial = message.request_id
            return True
        self._held.append(message)
        return False

    def note(self, outputs: StepOutputs) -> list[str]:
        """Take a step's outputs in; returns the suspects who have passed or ended with it."""
        cleared = [refusal.request_id for refusal in outputs.refusals if refusal.request_id in self._gained]
        for row in outputs.rows:
            if row.request_id in self._gained:
                self._gained[row.request_id] += len(row.tokens)
                has_ended = row.finish_reason is not None or row.error is not None
                if has_ended or self._gained[row.request_id] >= PROOF_TOKENS:
                    cleared.append(row.request_id)
        self._forget(cleared)
        return cleared

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """These are not wanted any more; returns the suspects among them."""
        ended = set(request_ids)
        self._held = deque(one for one in self._held if one.request_id not in ended)
        cleared = [one for one in ended if one in self._gained]
        self._forget(cleared)
        return cleared

    def next_on_trial(self) -> AddRequest | None:
        """The next suspect that may run, when none is on trial."""
        if self._on_trial is not None or not self._held:
            return None
        message = self._held.popleft()
        self._on_trial = message.request_id
        return message

    def _forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._gained.pop(request_id, None)
            self._grave.discard(request_id)
            if request_id == self._on_trial:
                self._on_trial = None
