"""The settings of a scheduler and their accepted ranges; knows nothing of what the settings do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_scheduler.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policy of a scheduler.

    Attributes:
        max_model_len: Most tokens of a request, prompt and outputs together.
        max_num_seqs: Requests that may run at once; also the number of slots.
        max_num_batched_tokens: Token budget of a step over all rows.
        policy: Order of requests: ``fcfs``, ``priority``, ``fair``, ``deadline``, ``prefix``, a name of the
            entry-point group ``llm_stack.scheduling_policies``, or ``module:Class``.
        aging: Under a policy that ages, a request that so many later ones have overtaken is put first, at
            most one in so many; None for never. See ``llm_scheduler.aging`` for the bound.
        tenant_weights: For ``fair``: shares of the tenants, more than 0; 1 for a tenant that is not named.
        max_waiting_requests: Requests that may wait; beyond it ``add`` raises ``Busy``.
        max_waiting_tokens: Prompt tokens of waiting requests; beyond it ``add`` raises ``Busy``. An empty
            queue takes any request.
        long_prefill_tokens: Most tokens of one request in a step, or None for the whole budget. A cap leaves
            room for short prompts beside a long one.
        max_plans_in_flight: Plans that may be made before the oldest is updated; 2 is the overlapped loop.

    Raises:
        InvalidConfig: A value is outside its range.
    """

    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    policy: str = "fcfs"
    aging: int | None = 64
    tenant_weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    max_waiting_requests: int = 4096
    max_waiting_tokens: int = 16_777_216
    long_prefill_tokens: int | None = None
    max_plans_in_flight: int = 2

    def __post_init__(self) -> None:
        _require_positive("max_model_len", self.max_model_len, least=2)
        _require_positive("max_num_seqs", self.max_num_seqs)
        _require_positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _require_positive("max_waiting_requests", self.max_waiting_requests)
        _require_positive("max_waiting_tokens", self.max_waiting_tokens)
        _require_positive("max_plans_in_flight", self.max_plans_in_flight)
        if self.long_prefill_tokens is not None:
            _require_positive("long_prefill_tokens", self.long_prefill_tokens)
        if self.aging is not None:
            _require_positive("aging", self.aging)
        if not isinstance(self.policy, str):
            raise InvalidConfig("policy", self.policy, "the name of a policy")
        _require_weights("tenant_weights", self.tenant_weights)


def _require_positive(field: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InvalidConfig(field, value, f"an integer from {least} to 2**31 - 1")


def _require_weights(field: str, weights: object) -> None:
    if not isinstance(weights, Mapping):
        raise InvalidConfig(field, weights, "a mapping of tenants to weights")
    for tenant, weight in weights.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not isinstance(tenant, str) or not is_number or not 0 < weight < math.inf:
            raise InvalidConfig(field, weights, "names of tenants with finite weights above 0")
