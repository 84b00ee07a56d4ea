"""Counters of a scheduler as one snapshot; knows nothing of how they are exported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot; counters count from the start of the scheduler.

    Attributes:
        running: Requests that hold a slot and go on.
        waiting: Requests in the queue, preempted ones included.
        waiting_tokens: Known tokens of the waiting requests.
        plans_in_flight: Plans made and not yet updated.
        steps: Plans made.
        scheduled_tokens: Tokens over all plans.
        preemptions: Times a running request lost its blocks.
        finished_stop: Requests that ended by a stop token.
        finished_length: Requests that ended by length.
        finished_abort: Requests aborted.
        finished_error: Requests that ended by a fault or a failed step.
        prefix_queries: Tokens looked up in the prefix cache by admitted requests.
        prefix_hits: Tokens of them found.
        num_blocks: Blocks of the cache.
        used_blocks: Blocks that some request holds.
        finished_deadline: Requests that ended because their deadline went out of reach while they waited.
        loading: Requests that hold a slot and blocks while their KV is brought from elsewhere.
        not_ready: Waiting requests that wait for something besides a slot and blocks.
    """

    running: int
    waiting: int
    waiting_tokens: int
    plans_in_flight: int
    steps: int
    scheduled_tokens: int
    preemptions: int
    finished_stop: int
    finished_length: int
    finished_abort: int
    finished_error: int
    prefix_queries: int
    prefix_hits: int
    num_blocks: int
    used_blocks: int
    finished_deadline: int = 0
    loading: int = 0
    not_ready: int = 0

    @property
    def kv_usage(self) -> float:
        """Share of the cache's blocks in use, from 0 to 1."""
        return self.used_blocks / self.num_blocks if self.num_blocks else 0.0
