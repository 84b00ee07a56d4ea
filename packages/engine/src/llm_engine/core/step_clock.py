"""Owns the split of the step loop's time into phases; knows nothing of what the phases do."""

import time
from collections.abc import Callable


class StepClock:
    """Adds up the time of each phase of the steps: one reading of the clock a phase.

    Args:
        clock: Seconds that never go back.

    Attributes:
        seconds: By phase, in total: "plan", "launch", "wait", "result", and "between" the steps while work
            was left.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last_s = 0.0
        self._work_left = False
        self.seconds = dict.fromkeys(("plan", "launch", "wait", "result", "between"), 0.0)

    def begin(self) -> None:
        """A step begins."""
        now_s = self._clock()
        if self._work_left:
            self.seconds["between"] += now_s - self._last_s
        self._last_s = now_s

    def lap(self, phase: str) -> None:
        """What ran since the last reading belongs to `phase`."""
        now_s = self._clock()
        self.seconds[phase] += now_s - self._last_s
        self._last_s = now_s

    def end(self, *, work_left: bool) -> None:
        """The step ends; without work left the time up to the next one is nobody's."""
        self._work_left = work_left
