"""Owns the core's own counters and their snapshot; knows nothing of how they are exported."""

import time
from collections.abc import Mapping

from llm_kvcache import KVCache
from llm_scheduler import RowOutput, Scheduler

from llm_engine.core.step_clock import StepClock
from llm_engine.stats import EngineStats


class Counters:
    """What the core counts beside the scheduler and the cache."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.requests_added = 0
        self.requests_refused = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.steps = 0
        self.failed_steps = 0
        self.late_steps = 0
        self.clock = StepClock()

    def count_outputs(self, outputs: list[RowOutput]) -> None:
        """Count a finished step."""
        self.steps += 1
        self.generated_tokens += sum(len(output.tokens) for output in outputs)

    def snapshot(self, scheduler: Scheduler, cache: KVCache, worker_steps: Mapping[str, int]) -> EngineStats:
        """All counters and gauges, as of now; `worker_steps` as `Worker.step_counts` gives them."""
        queue, blocks = scheduler.stats(), cache.stats()
        seconds = self.clock.seconds
        return EngineStats(
            running=queue.running,
            waiting=queue.waiting,
            kv_blocks_total=blocks.num_blocks,
            kv_blocks_free=blocks.free,
            kv_blocks_cached=blocks.cached,
            kv_blocks_used=blocks.used,
            kv_blocks_pinned=blocks.pinned,
            kv_evictions=blocks.evictions,
            prefix_query_tokens=queue.prefix_queries,
            prefix_hit_tokens=queue.prefix_hits,
            preemptions=queue.preemptions,
            requests_added=self.requests_added,
            requests_refused=self.requests_refused,
            requests_finished={
                "stop": queue.finished_stop,
                "length": queue.finished_length,
                "abort": queue.finished_abort,
                "error": queue.finished_error,
            },
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            scheduled_tokens=queue.scheduled_tokens,
            steps=self.steps,
            graph_steps=worker_steps["graph"],
            eager_steps=worker_steps["eager"],
            failed_steps=self.failed_steps,
            late_steps=self.late_steps,
            plan_s=seconds["plan"],
            launch_s=seconds["launch"],
            result_s=seconds["result"],
            host_s=seconds["plan"] + seconds["launch"] + seconds["result"],
            wait_s=seconds["wait"],
            between_s=seconds["between"],
            uptime_s=time.monotonic() - self._started_s,
        )
