"""What became of each request, as its caller sees it; knows nothing of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_scheduler.conformance.worlds import World
from llm_scheduler.request import Request


@dataclass(slots=True, eq=False)
class Entry:
    """A request that was accepted.

    Attributes:
        request: The request.
        expected: Its outputs when nothing disturbs it.
        expected_reason: Its finish reason then.
        outputs: Tokens delivered so far.
        reason: Why it ended, or None while it is live.
        num_cached_tokens: Prefix hit of its first admission, or None before.
        num_admissions: Times it took a slot.
        num_plans_before: Times that a plan had been asked for when it came.
    """

    request: Request
    expected: list[int]
    expected_reason: str
    outputs: list[int] = field(default_factory=list)
    reason: str | None = None
    num_cached_tokens: int | None = None
    num_admissions: int = 0
    num_plans_before: int = 0

    @property
    def name(self) -> str:
        """Its request id."""
        return self.request.request_id

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.reason is None

    def known_tokens(self) -> list[int]:
        """Return the prompt and the delivered outputs."""
        tokens: list[int] = self.request.token_ids.tolist()
        return tokens + self.outputs


class Ledger:
    """All accepted requests by id; an id may come again once its request has ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._entries: dict[str, Entry] = {}
        self.ended: Counter[str] = Counter()

    def open(self, request: Request, num_plans_before: int) -> None:
        """Note an accepted request; ``num_plans_before`` as in ``Entry``."""
        entry = Entry(request, *self._world.expected(request), num_plans_before=num_plans_before)
        self._entries[request.request_id] = entry

    def get(self, request_id: str) -> Entry | None:
        """Return the newest entry of that id."""
        return self._entries.get(request_id)

    def live(self) -> list[Entry]:
        """Return the live requests in the order of their arrival."""
        return [entry for entry in self._entries.values() if entry.is_live]

    def live_ids(self, request_ids: Iterable[str]) -> list[str]:
        """Return those of the ids that are live, each once."""
        wanted = dict.fromkeys(request_ids)
        return [name for name in wanted if name in self._entries and self._entries[name].is_live]

    def close(self, entry: Entry, reason: str) -> None:
        """Note that a request ended."""
        entry.reason = reason
        self.ended[reason] += 1
