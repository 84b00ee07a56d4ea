"""A scheduler on a real cache with a checking worker, as the behaviour tests use it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import Request, SchedulerConfig, StepPlan, TokenBudgetScheduler
from scheduler_simulation import Loop, SimulatedWorker, TokenRule

RULE = TokenRule(vocab_size=1000)
BLOCK_SIZE = 4


class Bench:
    """A scheduler on a real cache with a checking worker."""

    def __init__(
        self,
        num_blocks: int = 64,
        depth: int = 1,
        caching: bool = True,
        parts: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(**{"max_model_len": 200, "max_num_seqs": 8, **config})
        self.cache = KVCache([FullAttention(BLOCK_SIZE)], num_blocks, enable_prefix_caching=caching)
        self.scheduler = TokenBudgetScheduler(self.config, self.cache, **(parts or {}))
        worker = SimulatedWorker(
            self.config.max_num_seqs, num_blocks, BLOCK_SIZE, self.config.max_model_len, RULE
        )
        self.loop = Loop(self.scheduler, worker, depth)
        self.requests: dict[str, Request] = {}

    def add(self, name: str, prompt: int | list[int] = 5, max_tokens: int = 4, **fields: Any) -> Request:
        if isinstance(prompt, int):
            prompt = [hash_of(name) + i for i in range(prompt)]
        token_ids = np.array(prompt, np.int32)
        request = Request(request_id=name, token_ids=token_ids, max_tokens=max_tokens, **fields)
        object.__setattr__(request, "payload", request)
        self.loop.add(request)
        self.requests[name] = request
        return request

    def expected(self, name: str) -> tuple[list[int], str]:
        return RULE.expected(self.requests[name], self.config.max_model_len)

    def run_and_check(self, *, but: tuple[str, ...] = ()) -> None:
        results = self.loop.run()
        for name in self.requests:
            if name not in but:
                assert (results[name].tokens, results[name].reason) == self.expected(name), name
        self.cache.check()
        assert self.scheduler.stats().used_blocks == 0


def hash_of(name: str) -> int:
    return sum(ord(letter) * 17 for letter in name)


def rows(plan: StepPlan | None) -> list[tuple[int, int, int, bool]]:
    assert plan is not None
    return list(
        zip(
            plan.slots.tolist(),
            plan.num_computed.tolist(),
            plan.num_tokens.tolist(),
            plan.samples.tolist(),
            strict=True,
        )
    )


def admitted(plan: StepPlan | None) -> list[str]:
    assert plan is not None
    return [row.request_id for row in plan.admitted]


def bench_request(prompt: list[int], max_tokens: int) -> Request:
    return Request(request_id="x", token_ids=np.array(prompt, np.int32), max_tokens=max_tokens)
