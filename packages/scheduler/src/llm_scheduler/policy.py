"""In which order requests are served; knows nothing of budgets, slots or blocks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from llm_scheduler.errors import InvalidConfig
from llm_scheduler.request import OrderKey, Request


class Policy(Protocol):
    """Orders requests: the first gets tokens, slots and blocks first, the last is preempted first."""

    def key(self, request: Request) -> OrderKey:
        """Return the request's sort key; smaller is served earlier, ties in the order of ``add``.

        Called once, when the request is added. All keys of a policy have the same length.
        """
        ...


class FirstComeFirstServed:
    """By arrival."""

    def key(self, request: Request) -> OrderKey:
        """Return ``(arrival_s,)``."""
        return (request.arrival_s,)


class PriorityThenArrival:
    """By priority value (lower first), then by arrival. A steady stream of low values starves the others."""

    def key(self, request: Request) -> OrderKey:
        """Return ``(priority, arrival_s)``."""
        return (request.priority, request.arrival_s)


POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {"fcfs": FirstComeFirstServed, "priority": PriorityThenArrival}
)


def policy_by_name(name: str) -> Policy:
    """Make the policy of that name.

    Raises:
        InvalidConfig: No policy has that name.
    """
    if name not in POLICIES:
        raise InvalidConfig("policy", name, f"one of {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
