"""What a workload is like, before anything runs: sizes, rate, how much of its prompts repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_scheduler.sim.metrics import distribution
from llm_scheduler.sim.report import Distribution
from llm_scheduler.sim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """A workload in figures.

    Attributes:
        requests: Number of them.
        follow_ups: Those that start after another one has ended.
        span_s: From the first to the last arrival of the others.
        requests_per_s: Those a second over that span; None where it is 0.
        prompt_tokens: Lengths of the prompts.
        output_tokens: Lengths of the outputs.
        tenants: Number of tenants.
        repeated_share: Share of prompt tokens that an earlier request had at the same place behind the same
            tokens: the hit rate of an endless cache, blocks and timing aside. Explicit ids count as new.
    """

    requests: int
    follow_ups: int
    span_s: float
    requests_per_s: float | None
    prompt_tokens: Distribution
    output_tokens: Distribution
    tenants: int
    repeated_share: float


def summarize(workload: Workload) -> WorkloadSummary:
    """Describe a workload."""
    free = workload.after < 0
    arrivals = workload.arrival_s[free]
    span_s = float(arrivals.max() - arrivals.min())
    return WorkloadSummary(
        requests=len(workload),
        follow_ups=int((~free).sum()),
        span_s=span_s,
        requests_per_s=len(arrivals) / span_s if span_s else None,
        prompt_tokens=distribution(workload.prompt_tokens.astype(np.float64)),
        output_tokens=distribution(workload.output_tokens.astype(np.float64)),
        tenants=len(workload.tenant_names),
        repeated_share=_repeated_tokens(workload) / int(workload.prompt_tokens.sum()),
    )


def _repeated_tokens(workload: Workload) -> int:
    """Count prompt tokens that are known by name to have come before."""
    nodes: dict[tuple[int, int, int], int] = {}
    repeated = 0
    for index in range(len(workload)):
        if workload.continues[index]:
            repeated += int(workload.prompt_tokens[index] - workload.own_tokens[index])
            continue
        node = -1
        for number, tokens in workload.shared.get(index, ()):
            key = (node, number, tokens)
            if key in nodes:
                repeated += tokens
            node = nodes.setdefault(key, len(nodes))
    return repeated
