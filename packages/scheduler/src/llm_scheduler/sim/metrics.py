"""Computes the figures of a report from what a simulation recorded; knows nothing of how it ran."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llm_kvcache import Stats

from llm_scheduler.plan import Bool
from llm_scheduler.sim.recording import Outcome, Recording, RequestLog, StepLog
from llm_scheduler.sim.report import (
    CacheFigures,
    Distribution,
    Fairness,
    Goodput,
    Report,
    RequestCounts,
    Slo,
    StepFigures,
    TenantFigures,
    Throughput,
    Timeline,
)
from llm_scheduler.sim.workload import Float64, Workload

_TIMELINE_POINTS = 200


def make_report(
    name: str,
    workload: Workload,
    recording: Recording,
    cache: Stats,
    *,
    slo: Slo | None = None,
    setup: Mapping[str, object] | None = None,
) -> Report:
    """Compute the figures of a finished simulation.

    Args:
        name: What was simulated, in short.
        workload: What arrived.
        recording: What happened.
        cache: The cache's counters at the end.
        slo: Bounds of goodput.
        setup: Passed through.
    """
    slo = slo or Slo()
    log = recording.requests
    finished = log.outcomes == Outcome.FINISHED
    throughput = _throughput(workload, recording, finished)
    return Report(
        name=name,
        requests=_counts(log),
        ttft_s=distribution(log.first_token_s - log.arrived_s),
        itl_s=distribution(log.itl_s()),
        e2e_s=distribution((log.ended_s - log.arrived_s)[finished]),
        queue_s=distribution(log.admitted_s - log.arrived_s),
        throughput=throughput,
        goodput=_goodput(workload, log, finished, slo, throughput.seconds),
        cache=_cache_figures(workload, recording, cache),
        steps=_step_figures(recording),
        fairness=_fairness(workload, recording),
        tenants=_tenants(workload, recording, finished),
        timeline=_timeline(recording.steps, cache.num_blocks),
        slo=slo,
        setup=setup or {},
    )


def distribution(values: Float64) -> Distribution:
    """Summarise values; NaNs are left out.

    Args:
        values: float64[n].
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return Distribution(count=0, mean=None, p50=None, p90=None, p99=None, max=None)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    mean, most = float(values.mean()), float(values.max())
    return Distribution(count=len(values), mean=mean, p50=p50, p90=p90, p99=p99, max=most)


def jain_index(shares: Float64) -> float:
    """Return Jain's fairness index: 1 where all shares are equal, 1/n where one has all.

    Args:
        shares: float64[n], at least one; 1 where all are 0.
    """
    squares = float((shares**2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 1.0


def _counts(log: RequestLog) -> RequestCounts:
    number = np.bincount(log.outcomes, minlength=len(Outcome)).tolist()
    return RequestCounts(
        total=len(log.outcomes),
        finished=number[Outcome.FINISHED],
        refused=number[Outcome.REFUSED],
        failed=number[Outcome.FAILED],
        expired=number[Outcome.EXPIRED],
        not_sent=number[Outcome.NOT_SENT],
        refusals=dict(sorted(log.refusals.items())),
        retries=log.retries,
    )


def _throughput(workload: Workload, recording: Recording, finished: Bool) -> Throughput:
    steps, log = recording.steps, recording.requests
    outputs = int(log.num_outputs[finished].sum())
    prompts = int(workload.prompt_tokens[finished].sum())
    seconds = steps.start_s[-1] + steps.seconds[-1] - float(np.nanmin(log.arrived_s)) if len(steps) else 0.0
    per_second = 1 / seconds if seconds else 0.0
    return Throughput(
        seconds=seconds,
        requests_per_s=int(finished.sum()) * per_second,
        output_tokens_per_s=outputs * per_second,
        total_tokens_per_s=(prompts + outputs) * per_second,
        busy=min(float(np.sum(steps.seconds)) * per_second, 1.0),
    )


def _goodput(workload: Workload, log: RequestLog, finished: Bool, slo: Slo, seconds: float) -> Goodput | None:
    has_deadline = ~np.isnan(workload.deadline_s)
    bounds = (slo.ttft_s, slo.itl_s, slo.max_itl_s, slo.e2e_s)
    if all(bound is None for bound in bounds) and not has_deadline.any():
        return None
    e2e_s = log.ended_s - log.arrived_s
    gaps = np.maximum(log.num_outputs - 1, 1)
    # A request of one token has no pause between tokens: its mean is 0, its longest NaN.
    measured = (
        log.first_token_s - log.arrived_s,
        (log.last_token_s - log.first_token_s) / gaps,
        log.max_itl_s,
        e2e_s,
    )
    in_time = ~(e2e_s > workload.deadline_s)
    good = finished & in_time
    for bound, values in zip(bounds, measured, strict=True):
        if bound is not None:
            good &= ~(values > bound)
    arrived = ~np.isnan(log.arrived_s)
    number = int(good.sum())
    return Goodput(
        good=number,
        share=number / max(int(arrived.sum()), 1),
        requests_per_s=number / seconds if seconds else 0.0,
        with_deadline=int((arrived & has_deadline).sum()),
        deadlines_met=int((finished & has_deadline & in_time).sum()),
    )


def _cache_figures(workload: Workload, recording: Recording, cache: Stats) -> CacheFigures:
    steps, cached = recording.steps, recording.requests.cached_tokens
    admitted = cached >= 0
    prompt_tokens, cached_tokens = int(workload.prompt_tokens[admitted].sum()), int(cached[admitted].sum())
    used = np.array(steps.used_blocks, np.float64) / cache.num_blocks
    return CacheFigures(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        num_blocks=cache.num_blocks,
        mean_usage=_mean_over_time(used, steps),
        max_usage=float(used.max(initial=0.0)),
        evictions=cache.evictions,
    )


def _step_figures(recording: Recording) -> StepFigures:
    steps, number = recording.steps, max(len(recording.steps), 1)
    return StepFigures(
        steps=len(steps),
        mean_rows=sum(steps.num_rows) / number,
        mean_tokens=sum(steps.num_tokens) / number,
        mean_seconds=float(np.sum(steps.seconds)) / number,
        mean_waiting=_mean_over_time(np.array(steps.waiting, np.float64), steps),
        max_waiting=max(steps.waiting, default=0),
        preemptions=recording.preemptions,
        wasted_tokens=recording.wasted_tokens,
    )


def _mean_over_time(values: Float64, steps: StepLog) -> float:
    return float(np.average(values, weights=np.array(steps.seconds))) if len(steps) else 0.0


def _weights(workload: Workload) -> Float64:
    return np.array([workload.tenant_weights.get(name, 1.0) for name in workload.tenant_names], np.float64)


def _fairness(workload: Workload, recording: Recording) -> Fairness:
    tenants, weights = recording.tenants, _weights(workload)
    contended = jain_index(tenants.contended / weights) if tenants.contended.any() else None
    return Fairness(jain_served=jain_index(tenants.served / weights), jain_contended=contended)


def _tenants(workload: Workload, recording: Recording, finished: Bool) -> dict[str, TenantFigures]:
    log, weights = recording.requests, _weights(workload).tolist()
    figures: dict[str, TenantFigures] = {}
    for tenant, name in enumerate(workload.tenant_names):
        own = workload.tenants == tenant
        done = own & finished
        figures[name] = TenantFigures(
            requests=int(own.sum()),
            finished=int(done.sum()),
            weight=weights[tenant],
            served_tokens=int(recording.tenants.served[tenant]),
            contended_tokens=int(recording.tenants.contended[tenant]),
            ttft_s=distribution((log.first_token_s - log.arrived_s)[own]),
            e2e_s=distribution((log.ended_s - log.arrived_s)[done]),
        )
    return figures


def _timeline(steps: StepLog, num_blocks: int) -> Timeline:
    if not len(steps):
        return Timeline(interval_s=0.0, running=(), waiting=(), kv_usage=(), tokens_per_s=())
    starts = np.array(steps.start_s)
    end_s = float(starts[-1]) + steps.seconds[-1]
    points = min(_TIMELINE_POINTS, len(steps))
    interval_s = end_s / points
    # The last step that began within the interval; before the first step, that one.
    last = np.searchsorted(starts, interval_s * np.arange(1, points + 1), side="left") - 1
    last = np.maximum(last, 0)
    interval_of = np.minimum((starts / interval_s).astype(np.int64), points - 1)
    tokens = np.bincount(interval_of, np.array(steps.num_tokens, np.float64), points)
    return Timeline(
        interval_s=interval_s,
        running=tuple(np.array(steps.running)[last].tolist()),
        waiting=tuple(np.array(steps.waiting)[last].tolist()),
        kv_usage=tuple((np.array(steps.used_blocks)[last] / num_blocks).tolist()),
        tokens_per_s=tuple((tokens / interval_s).tolist()),
    )
