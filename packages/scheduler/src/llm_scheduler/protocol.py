"""The protocol between an engine and a scheduler; knows nothing of any implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

from llm_scheduler.plan import RowOutput, StepPlan, StepResult
from llm_scheduler.request import Request
from llm_scheduler.stats import SchedulerStats

API_VERSION = 1
"""Version of the protocol; a scheduler class names the one it keeps in its attribute ``API_VERSION``."""


@runtime_checkable
class Scheduler(Protocol):
    """Decides what each step runs. Not thread-safe: one loop owns it.

    A class is made as ``cls(config, cache)`` from a ``SchedulerConfig`` and an ``llm_kvcache.KVCache``. Every
    error leaves the state unchanged.
    """

    API_VERSION: ClassVar[int]

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: A field is malformed.
            DuplicateRequest: A live request has its id.
            NeverFits: It could not run even alone in the empty cache.
            Busy: The queue is full.
        """
        ...

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests without further output.

        Unknown and ended ids are passed over. Blocks and slot are free at once, or, where a plan with the
        request is in flight, when that plan was updated or failed.

        Returns:
            The ids that were live.
        """
        ...

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or return None when nothing can run now.

        May be called again before ``update`` of the plan before it, up to the scheduler's depth: the token
        that an unfinished plan samples is then counted as known, and the worker finds it in its token table.

        Raises:
            PlanOrderError: Too many plans are in flight.
        """
        ...

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        """Take in the result of the oldest plan in flight.

        Returns:
            One output for each request with something new, in the plan's row order.

        Raises:
            PlanOrderError: The plan is not the oldest in flight.
            InvalidResult: The result does not fit the plan; ``fail`` may still be called.
        """
        ...

    def fail(self, plan: StepPlan, message: str) -> list[RowOutput]:
        """Take in that a step raised: the requests in it end with "error", nothing of it is cached.

        Any plan in flight may fail. Its ``admitted`` and ``released`` count as applied by the worker.

        Returns:
            One output for each request that ended.

        Raises:
            PlanOrderError: The plan is not in flight.
        """
        ...

    def has_work(self) -> bool:
        """Tell whether a request is live or a plan is in flight."""
        ...

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        ...
