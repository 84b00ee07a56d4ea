"""What a cap may limit, and how several limit together; knows nothing of any particular cap."""

from __future__ import annotations

from collections.abc import Sequence

from llm_scheduler.request import Request


class Cap:
    """A limit on who runs or on what a step holds. Every method has a default that limits nothing.

    Where several caps are in force, each must agree. A cap object belongs to one scheduler. None of the
    methods is called for rows that decode.
    """

    def admits(self, request: Request) -> bool:  # noqa: ARG002
        """Tell whether the request may start to run beside those that run now.

        A request that is refused does not hold up the ones behind it, so a cap must see to it that those do
        not starve it. The answer may change only when some request enters, leaves or is withdrawn.
        """
        return True

    def entered(self, request: Request) -> None:
        """Take note of a request that took a slot."""

    def left(self, request: Request) -> None:
        """Take note of a request that ended or was preempted."""

    def withdrawn(self, request: Request) -> None:
        """Take note of a request that ended while it waited."""

    def begin_step(self, budget: int, is_contended: bool) -> None:
        """Take note of a new step.

        Args:
            budget: Its tokens.
            is_contended: More than one request has prompt tokens to compute, or somebody waits.
        """

    def limit(self, request: Request, start: int, num_tokens: int) -> int:  # noqa: ARG002
        """Return how many tokens of a prompt may be computed in this step, from 0 to ``num_tokens``.

        Called in order of service, once a step for each running request whose prompt is not computed yet.

        Args:
            request: The request.
            start: Its computed tokens.
            num_tokens: What it could compute, at least 1.
        """
        return num_tokens

    def most_drafts(self, num_rows: int) -> int | None:  # noqa: ARG002
        """Return the most draft tokens of a row with so many running requests; None for no limit."""
        return None


class Caps:
    """Several caps as one.

    Attributes:
        limits_admission: Some cap has its own ``admits``.
        limits_prompts: Some cap has its own ``limit``.
        version: Changes when a refused request may have become admissible.
    """

    def __init__(self, caps: Sequence[Cap]) -> None:
        self._caps = tuple(caps)
        self._on_admission = tuple(cap for cap in caps if type(cap).admits is not Cap.admits)
        self._on_prompts = tuple(cap for cap in caps if type(cap).limit is not Cap.limit)
        self._on_drafts = tuple(cap for cap in caps if type(cap).most_drafts is not Cap.most_drafts)
        self.limits_admission = bool(self._on_admission)
        self.limits_prompts = bool(self._on_prompts)
        self.version = 0

    def admits(self, request: Request) -> bool:
        """Tell whether every cap admits the request."""
        return all(cap.admits(request) for cap in self._on_admission)

    def entered(self, request: Request) -> None:
        """Tell every cap."""
        self.version += 1
        for cap in self._caps:
            cap.entered(request)

    def left(self, request: Request) -> None:
        """Tell every cap."""
        self.version += 1
        for cap in self._caps:
            cap.left(request)

    def withdrawn(self, request: Request) -> None:
        """Tell every cap."""
        self.version += 1
        for cap in self._caps:
            cap.withdrawn(request)

    def begin_step(self, budget: int, is_contended: bool) -> None:
        """Tell every cap."""
        for cap in self._caps:
            cap.begin_step(budget, is_contended)

    def limit(self, request: Request, start: int, num_tokens: int) -> int:
        """Return the least of the limits; a cap is asked about what the caps before it left over."""
        for cap in self._on_prompts:
            if num_tokens <= 0:
                return 0
            num_tokens = min(cap.limit(request, start, num_tokens), num_tokens)
        return max(num_tokens, 0)

    def most_drafts(self, num_rows: int, most: int) -> int:
        """Return the least of the limits, ``most`` at the most."""
        limits = [cap.most_drafts(num_rows) for cap in self._on_drafts]
        return max(0, min([most, *(limit for limit in limits if limit is not None)]))
