"""Caps on who runs at the same time; knows nothing of tokens or steps."""

from __future__ import annotations

from collections import Counter

from llm_scheduler.caps import Cap
from llm_scheduler.request import Request


class LoraSlots(Cap):
    """At most so many distinct adapters among the running requests, so also in any step.

    Args:
        most: Distinct adapters; requests without one do not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()

    def admits(self, request: Request) -> bool:
        """Tell whether the adapter runs already or is one more than those that run."""
        if request.lora is None or request.lora in self._running:
            return True
        return len(self._running) < self._most

    def entered(self, request: Request) -> None:
        """Count the adapter in."""
        if request.lora is not None:
            self._running[request.lora] += 1

    def left(self, request: Request) -> None:
        """Count the adapter out."""
        if request.lora is not None:
            _count_out(self._running, request.lora)


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
