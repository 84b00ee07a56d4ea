"""The policies whose order is fixed when a request is added; knows nothing of policies that follow events."""

from __future__ import annotations

import math
from typing import ClassVar

from llm_scheduler.policy import Policy
from llm_scheduler.request import OrderKey, Request


class FirstComeFirstServed(Policy):
    """By arrival. Nothing that comes later passes, so nothing starves."""

    ages: ClassVar[bool] = False

    def key(self, request: Request) -> OrderKey:
        """Return ``(arrival_s,)``."""
        return (request.arrival_s,)


class PriorityThenArrival(Policy):
    """By priority value (lower first), then by arrival; a lower value preempts a higher one."""

    def urgency(self, request: Request) -> int:
        """Return the priority."""
        return request.priority

    def key(self, request: Request) -> OrderKey:
        """Return ``(arrival_s,)``."""
        return (request.arrival_s,)


class EarliestDeadlineFirst(Policy):
    """By deadline, then by arrival; requests without a deadline come last.

    Which deadlines can be met is decided elsewhere, for every policy: see ``deadlines``.
    """

    def key(self, request: Request) -> OrderKey:
        """Return ``(deadline_s, arrival_s)``."""
        deadline_s = math.inf if request.deadline_s is None else request.deadline_s
        return (deadline_s, request.arrival_s)
