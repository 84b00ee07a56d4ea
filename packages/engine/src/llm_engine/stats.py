"""Owns the counters and gauges of a running engine; knows nothing of how they are exported."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the core. Totals grow from its start; the rest are gauges.

    Attributes:
        running: Requests that hold a slot.
        waiting: Requests in the queue.
        kv_blocks_total: Blocks of the KV cache.
        kv_blocks_free: Blocks that hold nothing.
        kv_blocks_cached: Blocks that hold reusable contents and belong to no request.
        kv_blocks_used: Blocks that belong to requests.
        kv_blocks_pinned: Blocks that pins keep in the cache; a block of two pins counts twice.
        kv_evictions: Blocks whose reusable contents were given up for other contents (total).
        prefix_query_tokens: Prompt tokens looked up in the prefix cache (total).
        prefix_hit_tokens: Prompt tokens found there (total).
        preemptions: Requests put back to the queue for want of blocks (total).
        requests_added: Requests accepted (total).
        requests_refused: Requests refused by the scheduler (total).
        requests_finished: Requests that ended, by finish reason (total).
        prompt_tokens: Prompt tokens of accepted requests (total).
        generated_tokens: Tokens generated (total).
        scheduled_tokens: Tokens run through the model (total).
        steps: Steps finished (total).
        graph_steps: Steps that replayed a captured graph, on the first rank (total).
        eager_steps: Steps launched kernel by kernel, on the first rank (total).
        failed_steps: Steps that raised; their requests ended with an error (total).
        late_steps: Steps handed over after the device had finished all before: it stood idle (total).
        plan_s: Host time of planning steps in seconds (total).
        launch_s: Host time of handing steps to the device in seconds (total); 0 on the CPU.
        result_s: Host time of taking results in, in seconds (total).
        host_s: Host time of the steps in seconds, waiting for the device excluded (total): the three above.
        wait_s: Time spent waiting for the device in seconds (total); on the CPU, running the model.
        between_s: Time from one step to the next while work was left, in seconds (total): the front end's.
        uptime_s: Seconds since the core was ready.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_used: int = 0
    kv_blocks_pinned: int = 0
    kv_evictions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    requests_added: int = 0
    requests_refused: int = 0
    requests_finished: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    scheduled_tokens: int = 0
    steps: int = 0
    graph_steps: int = 0
    eager_steps: int = 0
    failed_steps: int = 0
    late_steps: int = 0
    plan_s: float = 0.0
    launch_s: float = 0.0
    result_s: float = 0.0
    host_s: float = 0.0
    wait_s: float = 0.0
    between_s: float = 0.0
    uptime_s: float = 0.0

    @property
    def host_ms_per_step(self) -> float:
        """Mean host time of a step in milliseconds."""
        return 1000 * self.host_s / self.steps if self.steps else 0.0
