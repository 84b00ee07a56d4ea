"""Owns what a host tells of its core, and the rules by which it restarts it; knows nothing of processes."""

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from llm_engine.core.messages import CoreInfo, PoolingReady
from llm_engine.errors import InvalidOption

CorePhase: TypeAlias = Literal["starting", "running", "restarting", "dead"]

HOST_SOCKET = "host"
"""The socket in the folder at which the host waits for front ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a core is started again, and when no more.

    Attributes:
        max_deaths: The host gives up at this many deaths within `window_s`; 1: it never restarts.
        window_s: How long a death counts.
        first_backoff_s: Wait before the first restart within the window.
        second_backoff_s: Wait before the second; it doubles with each further one.
        max_backoff_s: Longest wait.
        quarantine_after: A request is suspected when the core died so often in its steps, without progress.
        heartbeat_s: How often the host asks the core's loop for a sign of life.
        hang_timeout_s: A loop that gives none for so long is killed, which counts as a death; None: never.

    Raises:
        InvalidOption: A number is out of its range.
    """

    max_deaths: int = 8
    window_s: float = 300.0
    first_backoff_s: float = 0.0
    second_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    quarantine_after: int = 2
    heartbeat_s: float = 1.0
    hang_timeout_s: float | None = 120.0

    def __post_init__(self) -> None:
        for name in ("max_deaths", "quarantine_after"):
            if getattr(self, name) < 1:
                raise InvalidOption(name, f"must be at least 1, got {getattr(self, name)}")
        for name in ("first_backoff_s", "second_backoff_s", "max_backoff_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidOption(name, f"must be a number of seconds, got {getattr(self, name)}")
        for name in ("window_s", "heartbeat_s", "hang_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidOption(name, f"must be above 0, got {value}")

    def backoff_s(self, recent_deaths: int) -> float:
        """How long to wait before the restart after so many deaths within the window."""
        if recent_deaths <= 1:
            return self.first_backoff_s
        doubled: float = self.second_backoff_s * 2.0 ** min(recent_deaths - 2, 60)
        return min(doubled, self.max_backoff_s)


NO_RESTARTS = RestartPolicy(max_deaths=1)


class CoreState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a core is in its life.

    Attributes:
        phase: "restarting" from a death until the next core is ready; "dead" is final.
        generation: Which core, from 1; grows with each start.
        since_s: When the phase began, in seconds since 1970.
        attempt: In "restarting": which restart within the window, from 1; else 0.
        deaths: Deaths so far.
        reason: One line on the last death; empty before.
        pid: The core's process id; None between two processes.
    """

    phase: CorePhase
    generation: int = 0
    since_s: float = msgspec.field(default_factory=time.time)
    attempt: int = 0
    deaths: int = 0
    reason: str = ""
    pid: int | None = None


class FrontHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a front end to the host; a later one of the same name replaces it."""

    name: str


class HostNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the host to a front end: one at once, and one at each change.

    Attributes:
        front: The number of the front end; no other gets it, and its request ids begin with it.
        state: Of the core.
        found: Whether the tokenizer's path is known.
        tokenizer_path: The path; None: the model has no tokenizer, or it is not known yet.
        ready: What the core told of its model; None until the first is ready.
        ended: Requests that are not to be sent again, with the reason.
        failure: Kind and message of what kept the first core from starting.
        replaced: Another front end of the same name has come.
    """

    front: int
    state: CoreState
    found: bool = False
    tokenizer_path: str | None = None
    ready: CoreInfo | PoolingReady | None = None
    ended: dict[str, str] = {}
    failure: tuple[str, str] | None = None
    replaced: bool = False


class CoreOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a new core is told beside its options.

    Attributes:
        suspects: Requests that must show progress before they are believed again.
        one_at_a_time: Those of them that may only run one after the other until they do.
    """

    suspects: list[str] = []
    one_at_a_time: list[str] = []
