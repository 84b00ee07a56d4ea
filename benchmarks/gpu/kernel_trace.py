"""Splits a trace of a device's kernels into steps and says where their time went; knows nothing of engines.

A step ends with the copy of its tokens to the host. Kernels overlap where one starts while the one before it
ends, so besides its duration each gets its share of the path: the time by which its end moved the step on,
whatever idle time was before it not counted. Shares and idle times add up to the time from step to step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.autograd import DeviceType

_END = "Memcpy DtoH"


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's or a copy's time on the device, in nanoseconds."""

    name: str
    begin: int
    end: int


@dataclass(slots=True)
class Step:
    """What a step took, in microseconds.

    Attributes:
        names: Its kernels and copies in order.
        period: From the end of the step before to its own.
        between: Idle time before its first kernel.
        inside: Idle time between its kernels.
        path: By name, the time by which it moved the step on.
        durations: By name, the sum of its durations.
    """

    names: tuple[str, ...]
    period: float = 0.0
    between: float = 0.0
    inside: float = 0.0
    path: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    durations: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def launches_of(work: Any) -> list[Launch]:  # noqa: ANN401 - a torch profile
    """The kernels and copies that a `torch.profiler.profile` saw, in the order of their beginnings."""
    events = work.profiler.kineto_results.events()
    found = [
        Launch(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == DeviceType.CUDA
    ]
    return sorted(found, key=lambda launch: launch.begin)


def split_steps(launches: Iterable[Launch]) -> list[Step]:
    """The steps of a trace, but for the first, whose beginning nobody knows."""
    steps: list[Step] = []
    group: list[Launch] = []
    last_end: int | None = None
    for launch in launches:
        group.append(launch)
        if launch.name.startswith(_END):
            if last_end is not None:
                steps.append(_measure(group, last_end))
            last_end = max(one.end for one in group)
            group = []
    return steps


def alike(steps: Sequence[Step]) -> list[Step]:
    """The steps with the most frequent sequence of kernels."""
    names, _ = Counter(step.names for step in steps).most_common(1)[0]
    return [step for step in steps if step.names == names]


def report(steps: Sequence[Step], top: int) -> list[str]:
    """The mean step and its kernels, the costliest first, as lines."""
    count = len(steps)
    period = sum(step.period for step in steps) / count
    between = sum(step.between for step in steps) / count
    inside = sum(step.inside for step in steps) / count
    path, durations, calls = Counter[str](), Counter[str](), Counter[str]()
    for step in steps:
        path.update(step.path)
        durations.update(step.durations)
        calls.update(step.names)
    idle = f"idle between steps {between:.0f}, between kernels {inside:.0f}"
    busy = sum(durations.values()) / count
    kernels = f"{sum(calls.values()) / count:.0f} kernels, {busy:.0f} us"
    lines = [
        f"{count} steps: {period:.0f} us each, {idle}; {kernels}",
        "share  us a step  calls  duration  kernel",
    ]
    for name, value in path.most_common(top):
        each = durations[name] / calls[name]
        lines.append(
            f"{100 * value / count / period:5.1f} {value / count:10.1f} {calls[name] / count:6.1f} "
            f"{each:9.2f}  {name[:100]}"
        )
    return lines


def _measure(group: Sequence[Launch], last_end: int) -> Step:
    step = Step(tuple(launch.name for launch in group))
    front = last_end
    for index, launch in enumerate(group):
        idle = max(launch.begin - front, 0) / 1000
        if index == 0:
            step.between = idle
        else:
            step.inside += idle
        step.path[launch.name] += max(launch.end - max(front, launch.begin), 0) / 1000
        step.durations[launch.name] += (launch.end - launch.begin) / 1000
        front = max(front, launch.end)
    step.period = (front - last_end) / 1000
    return step
