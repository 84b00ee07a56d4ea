"""A second, much simpler scheduler, and ways to bend the default one, for the conformance tests.

``PlainScheduler`` shares only the check of malformed requests with the default one. It serves in order of
arrival, gives a request all the blocks it may ever need, never preempts and never plans ahead.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from llm_kvcache import KVCache
from llm_scheduler import (
    Busy,
    DuplicateRequest,
    InvalidResult,
    NeverFits,
    NewRow,
    PlanOrderError,
    Ragged,
    Request,
    RowOutput,
    SchedulerConfig,
    SchedulerStats,
    StepPlan,
    StepResult,
    TokenBudgetScheduler,
)
from llm_scheduler.admission import checked_request


class Job:
    """A request with its place."""

    def __init__(self, request: Request, limit: int) -> None:
        self.request = request
        self.limit = limit
        self.tokens = request.token_ids.tolist()
        self.slot = self.seq = -1
        self.computed = self.num_cached = 0
        self.reason: str | None = None


class PlainScheduler:
    API_VERSION = 1

    def __init__(self, config: SchedulerConfig, cache: KVCache) -> None:
        self.config, self.cache = config, cache
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.free_slots = list(range(config.max_num_seqs))
        self.released: list[int] = []
        self.in_flight: tuple[StepPlan, list[Job]] | None = None
        self.counts: Counter[str] = Counter()

    # Requests

    def add(self, request: Request) -> None:
        request = checked_request(request, self.config.max_model_len)
        if any(job.request.request_id == request.request_id for job in self.live()):
            raise DuplicateRequest(request.request_id)
        limit = min(len(request.token_ids) + request.max_tokens, self.config.max_model_len)
        needed = self.num_blocks(limit)
        if needed > self.cache.num_blocks:
            raise NeverFits(needed, self.cache.num_blocks)
        tokens = self.waiting_tokens() + len(request.token_ids)
        if len(self.waiting) >= self.config.max_waiting_requests:
            raise Busy(1.0, "too many requests wait")
        if self.waiting and tokens > self.config.max_waiting_tokens:
            raise Busy(1.0, "too many tokens wait")
        self.waiting.append(Job(request, limit))

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        wanted = set(request_ids)
        found = [job for job in self.live() if job.request.request_id in wanted]
        for job in found:
            self.end(job, "abort")
        return [job.request.request_id for job in found]

    # Steps

    def schedule(self) -> StepPlan | None:
        if self.in_flight:
            return None
        admitted = self.admit()
        wanted = [(job, len(job.tokens) - job.computed) for job in self.running]
        rows, budget = [], self.config.max_num_batched_tokens
        for job, count in self.order(wanted):
            if budget > 0:
                rows.append((job, min(count, budget)))
                budget -= rows[-1][1]
        if not rows:
            return None
        rows.sort(key=lambda row: row[1] > 1)
        return self.make_plan(rows, admitted)

    def order(self, wanted: list[tuple[Job, int]]) -> list[tuple[Job, int]]:
        return sorted(wanted, key=lambda pair: pair[1] > 1)

    def admit(self) -> list[Job]:
        admitted: list[Job] = []
        # Every running row computes a token at least, so that each admitted one has its row at once.
        room = self.config.max_num_batched_tokens - sum(
            len(job.tokens) - job.computed for job in self.running
        )
        while self.waiting and self.free_slots and room > 0:
            job = self.waiting[0]
            job.seq = self.cache.open(job.request.token_ids, salt=job.request.salt, lora=job.request.lora)
            job.num_cached = self.cache.match(job.seq) if job.request.match_prefix else 0
            if not self.cache.grow(job.seq, job.limit - job.num_cached):
                self.cache.release(job.seq)
                break
            job.computed = job.num_cached
            job.slot = self.free_slots.pop(0)
            room -= len(job.tokens) - job.computed
            admitted.append(job)
            self.running.append(self.waiting.popleft())
        return admitted

    def make_plan(self, rows: list[tuple[Job, int]], admitted: list[Job]) -> StepPlan:
        jobs = [job for job, _ in rows]
        counts = np.array([count for _, count in rows], np.int32)
        computed = np.array([job.computed for job in jobs], np.int32)
        known = np.array([len(job.tokens) for job in jobs], np.int32)
        tables = [self.cache.block_table(job.seq) if job in admitted else [] for job in jobs]
        plan = StepPlan(
            step_id=self.counts["steps"],
            slots=np.array([job.slot for job in jobs], np.int32),
            num_tokens=counts,
            num_computed=computed,
            samples=computed + counts == known,
            new_blocks=(Ragged.from_rows(tables),),
            admitted=[new_row(job) for job in admitted],
            released=np.array(self.released, np.int32),
            transfers=self.cache.take_transfers().moves,
        )
        self.released = []
        self.in_flight = (plan, jobs)
        self.counts["steps"] += 1
        self.counts["tokens"] += int(counts.sum())
        return plan

    # Results

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        jobs = self.jobs_of(plan)
        self.check(plan, result)
        outputs = []
        for row, job in enumerate(jobs):
            job.computed += int(plan.num_tokens[row])
            if job.reason is not None:
                continue
            if row in result.faults:
                outputs.append(self.fault(job, result.faults[row]))
                continue
            new = result.tokens.row(row).tolist()
            if new or row in result.prompt_logprobs:
                outputs.append(self.take(job, new, result.logprobs.get(row), result.prompt_logprobs.get(row)))
        self.land([job for row, job in enumerate(jobs) if row not in result.faults], jobs)
        return outputs

    def fail(self, plan: StepPlan, message: str) -> list[RowOutput]:
        jobs = self.jobs_of(plan)
        outputs = [self.fault(job, message) for job in jobs if job.reason is None]
        self.land([], jobs)
        return outputs

    def jobs_of(self, plan: StepPlan) -> list[Job]:
        if self.in_flight is None or self.in_flight[0].step_id != plan.step_id:
            raise PlanOrderError("not in flight")
        return self.in_flight[1]

    def check(self, plan: StepPlan, result: StepResult) -> None:
        if result.step_id != plan.step_id:
            raise InvalidResult("step_id", "of another step")
        if len(result.tokens) != plan.num_rows:
            raise InvalidResult("tokens", "of other rows")
        if any(not 0 <= row < plan.num_rows for row in result.faults):
            raise InvalidResult("faults", "outside the rows")
        if (result.tokens.values < 0).any():
            raise InvalidResult("tokens", "negative")
        for row, samples in enumerate(plan.samples):
            if row not in result.faults and (len(result.tokens.row(row)) > 0) != samples:
                raise InvalidResult("tokens", "too few or too many")

    def take(self, job: Job, new: list[int], logprobs: object, prompt_logprobs: object) -> RowOutput:
        job.tokens += new
        self.cache.append(job.seq, new)
        request, reason = job.request, None
        num_outputs = len(job.tokens) - len(request.token_ids)
        if new and new[-1] in request.stop_token_ids and num_outputs > request.min_tokens:
            reason = "stop"
        elif new and len(job.tokens) == job.limit:
            reason = "length"
        output = RowOutput(request.request_id, new, reason, num_cached_tokens=job.num_cached)
        output.stop_token = new[-1] if reason == "stop" else None
        output.logprobs, output.prompt_logprobs = logprobs, prompt_logprobs
        if reason:
            self.end(job, reason)
        return output

    def fault(self, job: Job, message: str) -> RowOutput:
        self.end(job, "error")
        return RowOutput(job.request.request_id, [], "error", num_cached_tokens=job.num_cached, error=message)

    def land(self, sound: list[Job], jobs: list[Job]) -> None:
        self.in_flight = None
        for job in sound:
            self.cache.commit(job.seq, job.computed)
        for job in jobs:
            if job.reason:
                self.leave(job)

    def end(self, job: Job, reason: str) -> None:
        job.reason = reason
        self.counts[reason] += 1
        if job.slot < 0:
            self.waiting.remove(job)
            return
        self.running.remove(job)
        if not (self.in_flight and job in self.in_flight[1]):
            self.leave(job)

    def leave(self, job: Job) -> None:
        self.cache.release(job.seq)
        self.released.append(job.slot)
        self.free_slots.append(job.slot)

    # Books

    def live(self) -> list[Job]:
        return [*self.running, *self.waiting]

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.cache.groups[0].block_size)

    def waiting_tokens(self) -> int:
        return sum(len(job.request.token_ids) for job in self.waiting)

    def has_work(self) -> bool:
        return bool(self.live()) or self.in_flight is not None

    def stats(self) -> SchedulerStats:
        cache, counts = self.cache.stats(), self.counts
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting_tokens(),
            plans_in_flight=int(self.in_flight is not None),
            steps=counts["steps"],
            scheduled_tokens=counts["tokens"],
            preemptions=0,
            finished_stop=counts["stop"],
            finished_length=counts["length"],
            finished_abort=counts["abort"],
            finished_error=counts["error"],
            prefix_queries=cache.queries,
            prefix_hits=cache.hits,
            num_blocks=cache.num_blocks,
            used_blocks=cache.used,
        )


def new_row(job: Job) -> NewRow:
    tokens, prompt = np.array(job.tokens, np.int32), len(job.request.token_ids)
    return NewRow(job.slot, job.request.request_id, tokens, prompt, job.request.payload)


Factory = Callable[[SchedulerConfig, KVCache], Any]


class Wrapped:
    """The default scheduler behind a layer that can be bent."""

    API_VERSION = 1

    def __init__(self, config: SchedulerConfig, cache: KVCache) -> None:
        self.inner: Any = TokenBudgetScheduler(config, cache)
        self.config, self.cache = config, cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def with_config(**changes: Callable[[SchedulerConfig], object]) -> Factory:
    """The default scheduler that was given other limits."""

    def make(config: SchedulerConfig, cache: KVCache) -> TokenBudgetScheduler:
        values: Any = {name: change(config) for name, change in changes.items()}
        return TokenBudgetScheduler(replace(config, **values), cache)

    return make


def with_plans(change: Callable[[StepPlan, SchedulerConfig], StepPlan]) -> Factory:
    """The default scheduler whose plans are changed on the way to the worker."""

    class Changed(Wrapped):
        def schedule(self) -> StepPlan | None:
            plan = self.inner.schedule()
            return None if plan is None else change(plan, self.config)

    return Changed


def with_outputs(change: Callable[[list[RowOutput]], list[RowOutput]]) -> Factory:
    """The default scheduler whose outputs are changed on the way to the caller."""

    class Changed(Wrapped):
        def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
            return change(self.inner.update(plan, result))

    return Changed


def with_cache(**changes: Callable[..., object]) -> Factory:
    """The default scheduler on a cache with some methods changed; each gets the real cache first."""

    class Bent:
        def __init__(self, cache: KVCache) -> None:
            self._cache = cache

        def __getattr__(self, name: str) -> Any:
            if name in changes:
                return lambda *args, **kwargs: changes[name](self._cache, *args, **kwargs)
            return getattr(self._cache, name)

    return lambda config, cache: TokenBudgetScheduler(config, Bent(cache))  # type: ignore[arg-type]
