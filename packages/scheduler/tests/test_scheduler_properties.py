"""Random arrivals, aborts, faults and failures on tiny caches: every output must be what the token rule says.

``LLM_SCHEDULER_SEQUENCES`` sets how many sequences run, ``LLM_SCHEDULER_SEED`` where they start.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection

import numpy as np
import pytest
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import Busy, NeverFits, Request, SchedulerConfig, StepPlan, TokenBudgetScheduler
from scheduler_simulation import Loop, SimulatedWorker, TokenRule

NUM_SEQUENCES = int(os.environ.get("LLM_SCHEDULER_SEQUENCES", "1000"))
FIRST_SEED = int(os.environ.get("LLM_SCHEDULER_SEED", "0"))
NUM_PARTS = 10


class RandomRun:
    """One random sequence of operations."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.block_size = rng.choice([1, 2, 4])
        self.rule = TokenRule(vocab_size=rng.choice([2, 10, 50]))
        self.config = SchedulerConfig(
            max_model_len=rng.randint(8, 48),
            max_num_seqs=rng.randint(1, 5),
            max_num_batched_tokens=rng.randint(1, 24),
            policy=rng.choice(["fcfs", "priority", "fair", "deadline", "prefix"]),
            aging=rng.choice([None, 1, 2, 64]),
            tenant_weights={"a": rng.choice([0.5, 1.0, 4.0])},
            max_waiting_requests=rng.choice([2, 1000]),
            long_prefill_tokens=rng.choice([None, None, 3]),
            max_plans_in_flight=rng.choice([1, 2, 2, 3]),
        )
        longest = -(-self.config.max_model_len // self.block_size)
        self.num_blocks = max(1, longest + rng.randint(-1, 3 + longest // 2))
        self.cache = KVCache(
            [FullAttention(self.block_size)], self.num_blocks, enable_prefix_caching=rng.random() < 0.8
        )
        self.scheduler = TokenBudgetScheduler(self.config, self.cache)
        worker = SimulatedWorker(
            self.config.max_num_seqs, self.num_blocks, self.block_size, self.config.max_model_len, self.rule
        )
        self.loop = Loop(self.scheduler, worker, self.config.max_plans_in_flight)
        self.requests: dict[str, Request] = {}
        self.prompts = [[rng.randrange(50) for _ in range(24)] for _ in range(2)]
        self.trouble = rng.choice([0.0, 0.0, 0.15])

    def run(self) -> None:
        for _ in range(self.rng.randint(8, 40)):
            self.turn()
            self.cache.check()
        self.finish()

    def turn(self) -> None:
        if self.requests and self.rng.random() < self.trouble / 2:
            self.loop.abort([self.rng.choice(list(self.requests))])
        draw = self.rng.random()
        if draw < 0.3 and len(self.requests) < 8:
            self.add()
        elif draw < 0.65 and len(self.loop.in_flight) < self.loop.depth:
            self.launch()
        elif self.loop.in_flight:
            self.land()

    def add(self) -> None:
        rng = self.rng
        most = self.config.max_model_len - 1
        prompt = rng.choice(self.prompts)[: rng.randint(1, most)]
        prompt += [rng.randrange(50) for _ in range(rng.randint(0, 3))]
        max_tokens = rng.randint(1, 16)
        request = Request(
            request_id=f"r{len(self.requests)}",
            token_ids=np.array(prompt[:most], np.int32),
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens),
            stop_token_ids=frozenset(rng.sample(range(self.rule.vocab_size), rng.randint(0, 2))),
            priority=rng.randint(0, 2),
            tenant=rng.choice(["a", "b", "c"]),
            salt=rng.choice([None, None, b"a"]),
            match_prefix=rng.random() < 0.8,
        )
        object.__setattr__(request, "payload", request)
        try:
            self.loop.add(request)
        except (Busy, NeverFits):
            return
        self.requests[request.request_id] = request

    def launch(self) -> None:
        before = {state.request.request_id: state for state in self.scheduler._residency.running}
        plan = self.loop.launch(self.fault_rows, fails=self.rng.random() < self.trouble / 2)
        victims = [state.urgency for state in before.values() if state.slot < 0]
        if plan is not None and victims:
            admitted = [self.scheduler._requests[new.request_id] for new in plan.admitted]
            assert all(state.urgency < min(victims) or state.promotion for state in admitted)

    def fault_rows(self, plan: StepPlan) -> Collection[int]:
        return [row for row in range(plan.num_rows) if self.rng.random() < self.trouble / 4]

    def land(self) -> None:
        failed = [index for index, (_, result) in enumerate(self.loop.in_flight) if result is None]
        self.loop.land(self.rng.choice([0, *failed]))

    def finish(self) -> None:
        results = self.loop.run(most_steps=3000)
        self.cache.check()
        for request_id, request in self.requests.items():
            tokens, reason = self.rule.expected(request, self.config.max_model_len)
            result = results[request_id]
            if result.reason in ("abort", "error"):
                assert self.trouble
                assert result.tokens == tokens[: len(result.tokens)]
            else:
                assert (result.tokens, result.reason) == (tokens, reason)
                assert result.stop_token == (tokens[-1] if reason == "stop" else None)
        self.check_all_is_given_back()

    def check_all_is_given_back(self) -> None:
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.waiting_tokens, stats.plans_in_flight) == (0, 0, 0, 0)
        assert stats.used_blocks == 0
        assert self.cache.stats().sequences == 0
        table = self.scheduler._table
        assert (table.num_free, table.num_ended) == (self.config.max_num_seqs, 0)
        assert not table.in_flight.any()
        assert not table.plans.any()


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_sequences_yield_what_the_rule_says(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + NUM_SEQUENCES, NUM_PARTS):
        try:
            RandomRun(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
