"""The figures of one simulation as data; knows nothing of how they are computed, printed or drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from llm_scheduler.sim.errors import InvalidSetup

REPORT_VERSION = 1
"""Version of the JSON form; a field may be added without a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What makes a request good; None leaves a bound out.

    Attributes:
        ttft_s: Most seconds to the first token.
        itl_s: Most seconds between tokens, on average over the request.
        max_itl_s: Most seconds between any two tokens.
        e2e_s: Most seconds to the last token.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, bound in asdict(self).items():
            good = bound is None or 0 < bound < math.inf
            InvalidSetup.require(f"slo.{name}", good, f"expected a positive finite number, got {bound!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A spread of values; all but ``count`` are None where it is 0.

    Attributes:
        count: Number of values.
        mean: Their mean.
        p50: Median, interpolated linearly, as the other percentiles.
        p90: 90th percentile.
        p99: 99th percentile.
        max: Highest.
    """

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """How the requests of the workload ended; the parts add up to ``total``.

    Attributes:
        total: Requests of the workload.
        finished: Yielded all their tokens.
        refused: Not taken by the scheduler.
        failed: Ended by the scheduler with an error.
        expired: Ended by the scheduler because they could no longer meet their deadline.
        not_sent: Continue a conversation whose earlier turn did not finish.
        refusals: Refused ones by the name of the error.
        retries: Times a request came back after ``Busy``.
    """

    total: int
    finished: int
    refused: int
    failed: int
    expired: int
    not_sent: int
    refusals: Mapping[str, int]
    retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Work done over the time from the first arrival to the end of the last step.

    Attributes:
        seconds: That time.
        requests_per_s: Finished requests a second.
        output_tokens_per_s: Output tokens of finished requests a second.
        total_tokens_per_s: Prompt and output tokens of finished requests a second; cached ones count.
        busy: Share of the time that a step was running.
    """

    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met the bounds and, where they have one, their deadline.

    Attributes:
        good: Number of them.
        share: Of all requests that arrived; refused and failed ones are not good.
        requests_per_s: Of them, a second.
        with_deadline: Requests that arrived and have a deadline.
        deadlines_met: Of those, ended in time.
    """

    good: int
    share: float
    requests_per_s: float
    with_deadline: int
    deadlines_met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Use of the KV cache.

    Attributes:
        prompt_tokens: Prompt tokens of admitted requests.
        cached_tokens: Of those, found in the prefix cache at the first admission.
        hit_rate: Their ratio.
        num_blocks: Blocks of the cache.
        mean_usage: Mean share of blocks in use, weighted by time while steps ran.
        max_usage: Highest share.
        evictions: Cached blocks that gave way.
    """

    prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    num_blocks: int
    mean_usage: float
    max_usage: float
    evictions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What the steps were like.

    Attributes:
        steps: Number of them.
        mean_rows: Rows a step.
        mean_tokens: Tokens computed a step.
        mean_seconds: Seconds a step.
        mean_waiting: Requests in the queue, weighted by time while steps ran.
        max_waiting: Most of them.
        preemptions: Times a running request lost its blocks.
        wasted_tokens: Tokens sampled for requests that had ended.
    """

    steps: int
    mean_rows: float
    mean_tokens: float
    mean_seconds: float
    mean_waiting: float
    max_waiting: int
    preemptions: int
    wasted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant.

    Attributes:
        requests: Its requests.
        finished: Of those, finished.
        weight: Its weight.
        served_tokens: Tokens computed for it.
        contended_tokens: Of those, while another tenant had live requests too.
        ttft_s: Its times to the first token.
        e2e_s: Its times to the last token.
    """

    requests: int
    finished: int
    weight: float
    served_tokens: int
    contended_tokens: int
    ttft_s: Distribution
    e2e_s: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How evenly tenants were served: Jain's index, 1 when all got the same by weight, 1/T when one got all.

    Attributes:
        jain_served: Over tokens computed for each tenant in the whole run, by weight. Once everything is
            served it tells about the workload, not about the scheduler.
        jain_contended: Over the same in steps that began while several tenants had live requests; None where
            there was no such step.
    """

    jain_served: float
    jain_contended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The run in equal intervals of time, at most 200; each value is the last one known in its interval.

    Attributes:
        interval_s: Length of an interval.
        running: Requests with a slot.
        waiting: Requests in the queue.
        kv_usage: Share of blocks in use.
        tokens_per_s: Tokens computed in the interval, a second.
    """

    interval_s: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_usage: tuple[float, ...]
    tokens_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one simulation; times in seconds on the simulated clock.

    Attributes:
        name: What was simulated, in short.
        requests: How they ended.
        ttft_s: From arrival to the first token, of requests that got one.
        itl_s: Between two tokens of a request, every pause.
        e2e_s: From arrival to the last token, of finished requests.
        queue_s: From arrival to the first plan with the request.
        throughput: Work a second.
        goodput: Requests within the bounds; None where neither bounds nor deadlines were given.
        cache: Use of the KV cache.
        steps: What the steps were like.
        fairness: Jain's index over tenants.
        tenants: By name.
        timeline: The run over time.
        slo: The bounds of ``goodput``.
        setup: What was simulated, as plain data.
    """

    name: str
    requests: RequestCounts
    ttft_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    queue_s: Distribution
    throughput: Throughput
    goodput: Goodput | None
    cache: CacheFigures
    steps: StepFigures
    fairness: Fairness
    tenants: Mapping[str, TenantFigures]
    timeline: Timeline
    slo: Slo
    setup: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as JSON; equal reports give equal bytes."""
        return json.dumps({"version": REPORT_VERSION, **asdict(self)}, indent=1) + "\n"
