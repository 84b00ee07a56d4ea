"""What a policy may decide about the order of requests; knows nothing of budgets, slots or blocks.

Order has three parts, the first that differs decides: the *urgency* of a request, the place of its *lane*,
and its *key* within the lane. Urgency and key are fixed when the request is added. The place of a lane may
change at any time, so a policy that follows events (tokens used, contents of the cache) moves lanes, not
requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING, ClassVar, Protocol

from llm_scheduler.request import OrderKey, Request

if TYPE_CHECKING:
    from typing import Self

    from llm_scheduler.config import SchedulerConfig


class SchedulerView(Protocol):
    """What a policy may see of the scheduler that it is bound to."""

    @property
    def num_steps(self) -> int:
        """Plans made so far."""
        ...

    def now_s(self) -> float:
        """Read the scheduler's clock, seconds."""
        ...

    def cached_tokens(self, request_id: str) -> int:
        """Return how many first tokens of a waiting request the prefix cache holds now.

        -1 where the request does not wait.

        Hashes the prompt the first time; later calls cost about a lookup per cached block.
        """
        ...


class Policy(ABC):
    """Orders requests: the first gets tokens, slots and blocks first, the last is preempted first.

    ``key`` is enough for a static order; the other methods have defaults that do nothing. A policy object
    belongs to one scheduler. None of the methods is called per running request and step.

    Attributes:
        ages: Whether a steady stream of better requests could keep one waiting for ever. Then the scheduler's
            aging applies (``SchedulerConfig.aging``).
    """

    ages: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: SchedulerConfig) -> Self:  # noqa: ARG003  (for policies with settings)
        """Make the policy that a configuration names."""
        return cls()

    def bind(self, view: SchedulerView) -> None:  # noqa: B027  (optional)
        """Take the view of the scheduler; called once, before any other method."""

    @abstractmethod
    def key(self, request: Request) -> OrderKey:
        """Return the request's place within its lane; smaller is served earlier.

        Ties go in the order of ``add``. Called once, when the request is added. All keys of a policy have
        the same length.
        """

    def urgency(self, request: Request) -> int:  # noqa: ARG002
        """Return the request's class; smaller comes first whatever the lanes say.

        A waiting request whose urgency is smaller than that of a running one takes its slot or blocks where
        they are short. Called once, when the request is added.
        """
        return 0

    def lane(self, request: Request) -> Hashable:  # noqa: ARG002
        """Return the lane of the request. Called once, when the request is added."""
        return None

    def lane_key(self, lane: Hashable) -> float:  # noqa: ARG002
        """Return the place of a lane; smaller is served earlier, ties by the key of the first request.

        Asked when a request joins an empty lane, and for lanes that ``changed_lanes`` names.
        """
        return 0.0

    def changed_lanes(self) -> Collection[Hashable]:
        """Name lanes whose key may have changed since the last call; unknown lanes are passed over.

        Called before each admission, and not where nothing could be admitted.
        """
        return ()

    def joined(self, request: Request) -> None:  # noqa: B027  (optional)
        """Take note of a request that was added; called after ``lane`` and before ``lane_key``."""

    def left(self, request: Request) -> None:  # noqa: B027  (optional)
        """Take note of a request that ended."""

    def charge(self, lane: Hashable, num_tokens: int) -> None:  # noqa: B027  (optional)
        """Take note of tokens scheduled for a lane's requests since the last call.

        Called before admissions and when requests join or stop running, not in every step. Tokens of rejected
        drafts are taken back, so the number may be negative.
        """
