"""Workloads drawn from a seed: arrivals, lengths, tenants, prefixes, conversations; knows no trace format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from llm_scheduler.plan import Int64
from llm_scheduler.sim.errors import InvalidWorkload
from llm_scheduler.sim.lengths import Fixed, Lengths
from llm_scheduler.sim.workload import Float64, RequestSpec, Workload


class Process(StrEnum):
    """How requests arrive."""

    POISSON = "poisson"
    """Independently, at a mean rate."""
    GAMMA = "gamma"
    """At a mean rate, in bursts where the coefficient of variation is above 1."""
    UNIFORM = "uniform"
    """Evenly spaced."""
    CLOSED = "closed"
    """From a fixed number of users, each of whom waits for the answer before asking on."""
    BATCH = "batch"
    """All at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """A tenant of a synthetic workload.

    Attributes:
        name: Its name.
        share: Its share of the requests, relative to the others'.
        weight: Its share of service, relative to the others'.
        priority: Priority of its requests.
    """

    name: str
    share: float = 1.0
    weight: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        InvalidWorkload.require("tenant", bool(self.name), "expected a name")
        InvalidWorkload.require(
            "tenant", 0 < self.share < math.inf, f"{self.name!r}: expected a positive share"
        )
        InvalidWorkload.require(
            "tenant", 0 < self.weight < math.inf, f"{self.name!r}: expected a positive weight"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """A workload by its distributions.

    Attributes:
        num_requests: Requests, each turn of a conversation being one.
        process: How conversations (of one turn, if not said otherwise) arrive.
        rate: Requests a second over all tenants; not for ``closed`` and ``batch``.
        cv: Coefficient of variation of the gaps of ``gamma``.
        users: Users of ``closed``.
        think_s: Mean of the exponential pause before a user's next request.
        prompt_tokens: Tokens of a request's own, shared prefix and earlier turns not counted.
        output_tokens: Tokens it generates.
        max_tokens: Declared limit of every request, or None for its output length.
        tenants: Whose requests they are.
        prefix_groups: Number of shared prefixes.
        prefix_tokens: Length of each, drawn once a group.
        prefix_share: Share of the conversations that begin with one.
        prefix_zipf: Popularity of the groups: group ``k`` is as likely as ``1 / k**prefix_zipf``.
        turns: Turns of a conversation.
        deadline_s: Seconds after arrival by which each request should end, or None.
    """

    num_requests: int
    process: Process = Process.POISSON
    rate: float = 1.0
    cv: float = 1.0
    users: int = 1
    think_s: float = 0.0
    prompt_tokens: Lengths = field(default_factory=lambda: Fixed(512))
    output_tokens: Lengths = field(default_factory=lambda: Fixed(128))
    max_tokens: int | None = None
    tenants: tuple[TenantSpec, ...] = (TenantSpec(name="default"),)
    prefix_groups: int = 0
    prefix_tokens: Lengths = field(default_factory=lambda: Fixed(1024))
    prefix_share: float = 1.0
    prefix_zipf: float = 0.0
    turns: Lengths = field(default_factory=lambda: Fixed(1))
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        InvalidWorkload.require("num_requests", self.num_requests >= 1, "expected at least 1")
        InvalidWorkload.require("rate", 0 < self.rate < math.inf, "expected a positive finite number")
        InvalidWorkload.require("cv", 0 < self.cv <= 100, "expected a positive number up to 100")
        InvalidWorkload.require("users", self.users >= 1, "expected at least 1")
        InvalidWorkload.require(
            "think_s", 0 <= self.think_s < math.inf, "expected a finite number, at least 0"
        )
        InvalidWorkload.require("tenants", bool(self.tenants), "expected at least one")
        names = {tenant.name for tenant in self.tenants}
        InvalidWorkload.require("tenants", len(names) == len(self.tenants), "a name comes twice")
        InvalidWorkload.require("prefix_groups", self.prefix_groups >= 0, "expected at least 0")
        InvalidWorkload.require("prefix_share", 0 <= self.prefix_share <= 1, "expected a number from 0 to 1")
        InvalidWorkload.require("prefix_zipf", 0 <= self.prefix_zipf <= 10, "expected a number from 0 to 10")


def synthesize(spec: SyntheticSpec, seed: int = 0) -> Workload:
    """Draw a workload; the same seed gives the same one.

    Raises:
        InvalidWorkload: ``max_tokens`` is below an output length.
    """
    # A generator for each property, so that changing one distribution leaves the other draws as they are.
    lengths, arrivals, owners, prefixes, talks = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(5)
    )
    num = spec.num_requests
    prompts = spec.prompt_tokens.draw(lengths, num).tolist()
    outputs = spec.output_tokens.draw(lengths, num).tolist()
    first_turns, turn = _turns(spec, talks)
    gaps = _gaps(spec, arrivals, len(first_turns))
    think_s = arrivals.exponential(spec.think_s, num).tolist() if spec.think_s else [0.0] * num
    tenants = _choose(owners, np.array([tenant.share for tenant in spec.tenants]), len(first_turns))
    group_of, group_tokens = _prefixes(spec, prefixes, len(first_turns))
    specs: list[RequestSpec] = []
    last_of_user: dict[int, int] = {}
    talk = -1
    for index in range(num):
        starts = turn[index] == 0
        talk += starts
        user = talk % spec.users
        after = index - 1 if not starts else None
        if starts and spec.process is Process.CLOSED:
            after = last_of_user.get(user)
        group = group_of[talk] if starts else -1
        tenant = spec.tenants[tenants[talk]]
        specs.append(
            RequestSpec(
                prompt_tokens=prompts[index] + (group_tokens[group] if group >= 0 else 0),
                output_tokens=outputs[index],
                arrival_s=gaps[talk] if after is None else think_s[index],
                shared=((f"prefix-{group}", group_tokens[group]),) if group >= 0 else (),
                max_tokens=spec.max_tokens,
                tenant=tenant.name,
                priority=tenant.priority,
                deadline_s=spec.deadline_s,
                after=after,
                continues=not starts,
            )
        )
        last_of_user[user] = index
    return Workload.from_specs(specs, tenant_weights={t.name: t.weight for t in spec.tenants})


def _turns(spec: SyntheticSpec, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return the index of each conversation's first request, and each request's turn."""
    if isinstance(spec.turns, Fixed) and spec.turns.tokens == 1:
        return list(range(spec.num_requests)), [0] * spec.num_requests
    firsts: list[int] = []
    turn: list[int] = []
    while len(turn) < spec.num_requests:
        firsts.append(len(turn))
        turn.extend(range(int(spec.turns.draw(rng, 1)[0])))
    return firsts, turn[: spec.num_requests]


def _gaps(spec: SyntheticSpec, rng: np.random.Generator, count: int) -> list[float]:
    """Return the arrival of each conversation, seconds."""
    # Conversations come so that requests, all turns counted, come at the rate.
    mean_s = spec.num_requests / count / spec.rate
    gaps: Float64
    if spec.process is Process.POISSON:
        gaps = rng.exponential(mean_s, count)
    elif spec.process is Process.GAMMA:
        shape = 1 / spec.cv**2
        gaps = rng.gamma(shape, mean_s / shape, count)
    elif spec.process is Process.UNIFORM:
        gaps = np.full(count, mean_s)
    else:
        return [0.0] * count
    times: list[float] = np.cumsum(gaps).tolist()
    return times


def _choose(rng: np.random.Generator, shares: Float64, count: int) -> list[int]:
    if len(shares) == 1:
        return [0] * count
    chosen: list[int] = rng.choice(len(shares), count, p=shares / shares.sum()).tolist()
    return chosen


def _prefixes(spec: SyntheticSpec, rng: np.random.Generator, count: int) -> tuple[list[int], list[int]]:
    """Return each conversation's group, or -1, and each group's tokens."""
    if not spec.prefix_groups:
        return [-1] * count, []
    tokens: Int64 = spec.prefix_tokens.draw(rng, spec.prefix_groups)
    popularity = np.arange(1, spec.prefix_groups + 1, dtype=np.float64) ** -spec.prefix_zipf
    groups: Int64 = np.array(_choose(rng, popularity, count), np.int64)
    groups[rng.random(count) >= spec.prefix_share] = -1
    return groups.tolist(), tokens.tolist()
