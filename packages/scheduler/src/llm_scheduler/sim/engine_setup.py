"""Settings of the simulated engine, and the real scheduler and cache made from them; knows no time model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from llm_kvcache import FullAttention, Group, InvalidArgument, KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import IncompatibleScheduler
from llm_scheduler.loading import find_scheduler, installed_schedulers
from llm_scheduler.policy import Policy
from llm_scheduler.protocol import API_VERSION, Scheduler
from llm_scheduler.sim.errors import InvalidSetup


class SimulatedClock:
    """Seconds since the start of a simulation; called like ``time.monotonic``."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time now."""
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What is simulated.

    Attributes:
        config: Limits and policy, as for a real engine. Where it names no tenant weights, the scheduler gets
            those of the workload.
        num_blocks: Blocks of the KV cache.
        block_size: Tokens a block holds.
        scheduler: A name of ``llm_stack.schedulers``, ``module:Class``, or the class itself.
        policy: A policy class instead of the one that ``config`` names, for schedulers that take a policy.
        depth: Plans in flight: 1 plans a step when the one before has ended, 2 plans it meanwhile.
        host_s: Host time of a step. It adds to the step at depth 1; at depth 2 it only shows where it is
            longer than the step.
        prefix_caching: Whether full blocks are kept to be found again.
        eviction: Which cached block gives way first: a name of ``llm_kvcache.POLICIES`` or ``module:Class``.
        partial_reuse: Whether the first tokens of a cached block are found too.
        groups: KV groups of the model; None for one of full attention with ``block_size``.
        max_retries: Times a request comes back after ``Busy`` before it counts as refused.
    """

    config: SchedulerConfig
    num_blocks: int
    block_size: int = 16
    scheduler: str | type = "default"
    policy: type[Policy] | None = None
    depth: int = 2
    host_s: float = 0.0
    prefix_caching: bool = True
    eviction: str = "lru"
    partial_reuse: bool = False
    groups: tuple[Group, ...] | None = None
    max_retries: int = 0

    def __post_init__(self) -> None:
        InvalidSetup.require("num_blocks", self.num_blocks >= 1, "expected at least 1")
        InvalidSetup.require("block_size", self.block_size >= 1, "expected at least 1")
        InvalidSetup.require("depth", self.depth in {1, 2}, f"expected 1 or 2, got {self.depth}")
        InvalidSetup.require("host_s", 0 <= self.host_s < math.inf, "expected a finite number, at least 0")
        InvalidSetup.require("max_retries", self.max_retries >= 0, "expected at least 0")
        fits = self.depth <= self.config.max_plans_in_flight
        InvalidSetup.require(
            "depth", fits, f"above config.max_plans_in_flight={self.config.max_plans_in_flight}"
        )

    @property
    def label(self) -> str:
        """A short name: the policy of the default scheduler, or the scheduler."""
        name = self.scheduler if isinstance(self.scheduler, str) else self.scheduler.__name__
        if name != "default":
            return name
        return self.policy.__name__ if self.policy else self.config.policy

    def with_name(self, name: str | type) -> EngineSetup:
        """Return the setup with a policy or a scheduler named in short.

        Args:
            name: A policy class or a scheduler class; an installed scheduler, or a scheduler class as
                ``module:Class``; either with a policy, as ``SCHEDULER@POLICY``; anything else is a policy of
                this setup's scheduler. Behind a ``/`` may follow an eviction policy: ``prefix/lfu``.

        Raises:
            SchedulerNotFound: A ``module:Class`` cannot be imported.
        """
        if not isinstance(name, str):
            is_policy = issubclass(name, Policy)
            return replace(self, policy=name) if is_policy else replace(self, scheduler=name)
        name, _, eviction = name.partition("/")
        if eviction:
            return replace(self.with_name(name), eviction=eviction)
        scheduler, _, policy = name.partition("@")
        if policy:
            return replace(self, scheduler=scheduler, config=replace(self.config, policy=policy))
        if _names_scheduler(name):
            return replace(self, scheduler=name)
        return replace(self, config=replace(self.config, policy=name))

    def make_cache(self) -> KVCache:
        """Make an empty cache.

        Raises:
            InvalidSetup: The cache refuses a setting.
        """
        try:
            return KVCache(
                self.groups or (FullAttention(block_size=self.block_size),),
                self.num_blocks,
                policy=self.eviction,
                enable_prefix_caching=self.prefix_caching,
                partial_reuse=self.partial_reuse,
            )
        except InvalidArgument as error:
            raise InvalidSetup("eviction" if error.field == "policy" else error.field, str(error)) from error

    def make_scheduler(self, cache: KVCache, clock: SimulatedClock) -> Scheduler:
        """Make the scheduler over a cache; it gets the clock where its constructor has a ``clock``.

        Raises:
            SchedulerNotFound, IncompatibleScheduler: As ``load_scheduler``.
            InvalidConfig: The scheduler refuses the settings.
            InvalidSetup: The class given keeps another version of the protocol, or takes no policy.
        """
        factory = self._factory()
        accepted = inspect.signature(factory).parameters
        options: dict[str, object] = {"clock": clock} if "clock" in accepted else {}
        if self.policy is not None:
            InvalidSetup.require("policy", "policy" in accepted, f"{self.label} takes no policy")
            options["policy"] = self.policy.from_config(self.config)
        scheduler = factory(self.config, cache, **options)
        if not isinstance(scheduler, Scheduler):
            raise IncompatibleScheduler(self.label, "lacks methods of llm_scheduler.Scheduler")
        return scheduler

    def _factory(self) -> Callable[..., object]:
        if isinstance(self.scheduler, str):
            return find_scheduler(self.scheduler)
        version: object = getattr(self.scheduler, "API_VERSION", None)
        InvalidSetup.require(
            "scheduler", version == API_VERSION, f"API_VERSION is {version}, expected {API_VERSION}"
        )
        return self.scheduler


def _names_scheduler(name: str) -> bool:
    if ":" not in name:
        return name in installed_schedulers()
    try:
        find_scheduler(name)
    except IncompatibleScheduler:
        return False
    return True
