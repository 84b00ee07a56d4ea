"""A clock that stands still during a call, so that a replay can show a scheduler the same time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llm_kvcache import KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.protocol import Scheduler


class HeldClock:
    """Shows the time of ``source``, and one time all through a call.

    Attributes:
        held_s: The time to show, or None to ask the source.
    """

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source
        self.held_s: float | None = None

    def __call__(self) -> float:
        """Return seconds."""
        return self._source() if self.held_s is None else self.held_s


def make_with_clock(
    factory: Callable[..., Any], config: SchedulerConfig, cache: KVCache, clock: Callable[[], float]
) -> tuple[Scheduler, bool]:
    """Make a scheduler, with the clock where it takes one as the keyword ``clock``.

    Returns:
        The scheduler, and whether it took the clock.
    """
    takes_clock = "clock" in inspect.signature(factory).parameters
    made = factory(config, cache, clock=clock) if takes_clock else factory(config, cache)
    return made, takes_clock
