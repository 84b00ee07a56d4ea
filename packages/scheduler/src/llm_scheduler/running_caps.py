"""Caps on who runs at the same time; knows nothing of tokens or steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from llm_scheduler.caps import Cap
from llm_scheduler.request import Request


@dataclass(slots=True)
class _Refused:
    """An adapter that did not fit: since how many entries, and whose requests asked for it."""

    at: int
    request_ids: set[str] = field(default_factory=set)


class LoraSlots(Cap):
    """At most so many distinct adapters among the running requests, so also in any step.

    Requests whose adapter runs pass those whose adapter does not fit. Once ``patience`` of them have passed,
    only the adapter that has waited longest is admitted, until it runs: the running requests end some time.

    Args:
        most: Distinct adapters; requests without one do not count.
        patience: At least 1.
    """

    def __init__(self, most: int, patience: int = 64) -> None:
        self._most = most
        self._patience = patience
        self._running: Counter[str] = Counter()
        self._num_entered = 0
        self._refused: dict[str, _Refused] = {}

    def admits(self, request: Request) -> bool:
        """Tell whether the adapter runs already or is one more than those that run."""
        adapter = request.lora
        if adapter is None:
            return True
        fits = adapter in self._running or len(self._running) < self._most
        if fits and self._starved() in (None, adapter):
            return True
        if not fits:
            refused = self._refused.setdefault(adapter, _Refused(self._num_entered))
            refused.request_ids.add(request.request_id)
        return False

    def entered(self, request: Request) -> None:
        """Count the adapter in."""
        if request.lora is not None:
            self._num_entered += 1
            self._running[request.lora] += 1
            self._refused.pop(request.lora, None)

    def left(self, request: Request) -> None:
        """Count the adapter out."""
        if request.lora is not None:
            _count_out(self._running, request.lora)

    def withdrawn(self, request: Request) -> None:
        """Forget that the request was refused."""
        if request.lora in self._refused:
            request_ids = self._refused[request.lora].request_ids
            request_ids.discard(request.request_id)
            if not request_ids:
                del self._refused[request.lora]

    def _starved(self) -> str | None:
        """Return the adapter that was refused first, if too many have passed it since."""
        adapter = next(iter(self._refused), None)
        if adapter is None or self._num_entered - self._refused[adapter].at < self._patience:
            return None
        return adapter


class SeqsPerTenant(Cap):
    """At most so many running requests of a tenant.

    Args:
        most: Requests.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()

    def admits(self, request: Request) -> bool:
        """Tell whether the tenant runs fewer than its most."""
        return self._running[request.tenant] < self._most

    def entered(self, request: Request) -> None:
        """Count the request in."""
        self._running[request.tenant] += 1

    def left(self, request: Request) -> None:
        """Count the request out."""
        _count_out(self._running, request.tenant)


def _count_out(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
