"""A scheduler of one's own: the shortest expected job first, learnt by tenant; knows nothing of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from llm_kvcache import KVCache
from llm_scheduler import (
    Policy,
    Request,
    RowOutput,
    SchedulerConfig,
    StepPlan,
    StepResult,
    TokenBudgetScheduler,
)


class ShortestExpectedJob(Policy):
    """Orders requests by expected tokens: the prompt, and as many outputs as their tenant had lately."""

    def __init__(self) -> None:
        self._mean_outputs: dict[str, float] = {}

    def key(self, request: Request) -> tuple[float, ...]:
        """Return (expected tokens, arrival); a tenant without history is expected to use ``max_tokens``."""
        outputs = min(self._mean_outputs.get(request.tenant, request.max_tokens), request.max_tokens)
        return (len(request.token_ids) + outputs, request.arrival_s)

    def learn(self, tenant: str, num_outputs: int) -> None:
        """Take note of how long an answer was."""
        mean = self._mean_outputs.get(tenant, num_outputs)
        self._mean_outputs[tenant] = mean + 0.1 * (num_outputs - mean)


class ShortestJobScheduler(TokenBudgetScheduler):
    """The default scheduler under that policy, which learns from every answer that ends by itself."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCache, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs = ShortestExpectedJob()
        self._answers: dict[str, tuple[str, int]] = {}  # live requests: tenant, outputs so far
        super().__init__(config, cache, clock=clock, policy=self._jobs)

    def add(self, request: Request) -> None:
        """Queue a request."""
        super().add(request)
        self._answers[request.request_id] = (request.tenant, 0)

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests; nothing is learnt from them."""
        aborted = super().abort(request_ids)
        for request_id in aborted:
            del self._answers[request_id]
        return aborted

    def update(self, plan: StepPlan, result: StepResult) -> list[RowOutput]:
        """Take in the result of a step."""
        return self._follow(super().update(plan, result))

    def fail(self, plan: StepPlan, message: str) -> list[RowOutput]:
        """Take in that a step raised."""
        return self._follow(super().fail(plan, message))

    def _follow(self, outputs: list[RowOutput]) -> list[RowOutput]:
        for output in outputs:
            tenant, num_outputs = self._answers.pop(output.request_id)
            num_outputs += len(output.tokens)
            if output.finish_reason is None:
                self._answers[output.request_id] = (tenant, num_outputs)
            elif output.finish_reason == "stop":
                self._jobs.learn(tenant, num_outputs)
        return outputs
