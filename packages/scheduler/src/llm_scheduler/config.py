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
        long_prefill_share: Most of the budget for long prompts while others want some of it, above 0 to 1, or
            None for all of it.
        long_prompt_tokens: For ``long_prefill_share``: a prompt with more tokens left to compute is long.
        max_loras: Most distinct adapters among running requests, or None.
        max_num_seqs_per_tenant: Most running requests of one tenant, or None.
        encoder_budget: Most encoder tokens of a step, or None; see ``EncoderItem``.
        max_draft_tokens: Most draft tokens of a row in a step; 0 passes over what workers propose.
        draft_lengths: (running requests, draft tokens) in ascending order of the first: up to so many
            requests, so many drafts a row, none beyond the last. Empty for ``max_draft_tokens`` always.
        remote_kv_timeout_s: Seconds that a request waits for KV from elsewhere before it computes it.
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
    long_prefill_share: float | None = None
    long_prompt_tokens: int = 2048
    max_loras: int | None = None
    max_num_seqs_per_tenant: int | None = None
    encoder_budget: int | None = None
    max_draft_tokens: int = 0
    draft_lengths: tuple[tuple[int, int], ...] = ()
    remote_kv_timeout_s: float = 30.0
    max_plans_in_flight: int = 2

    def __post_init__(self) -> None:
        _require_positive("max_model_len", self.max_model_len, least=2)
        _require_positive("max_num_seqs", self.max_num_seqs)
        _require_positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _require_positive("max_waiting_requests", self.max_waiting_requests)
        _require_positive("max_waiting_tokens", self.max_waiting_tokens)
        _require_positive("max_plans_in_flight", self.max_plans_in_flight)
        _require_positive("long_prompt_tokens", self.long_prompt_tokens)
        _require_positive("max_draft_tokens", self.max_draft_tokens, least=0)
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if self.long_prefill_share is not None:
            _require_number("long_prefill_share", self.long_prefill_share, most=1.0)
        _require_number("remote_kv_timeout_s", self.remote_kv_timeout_s)
        _require_draft_lengths("draft_lengths", self.draft_lengths)
        if not isinstance(self.policy, str):
            raise InvalidConfig("policy", self.policy, "the name of a policy")
        _require_weights("tenant_weights", self.tenant_weights)


_OPTIONAL_COUNTS = (
    "aging",
    "long_prefill_tokens",
    "max_loras",
    "max_num_seqs_per_tenant",
    "encoder_budget",
)


def _require_positive(field: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InvalidConfig(field, value, f"an integer from {least} to 2**31 - 1")


def _is_number(value: object, most: float = math.inf) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= most and value < math.inf


def _require_number(field: str, value: object, most: float = math.inf) -> None:
    if not _is_number(value, most):
        raise InvalidConfig(field, value, f"a finite number above 0, at most {most}")


def _require_draft_lengths(field: str, steps: object) -> None:
    accepted = "pairs (running requests, draft tokens), the first ascending from 1, the second not negative"
    if not isinstance(steps, tuple | list) or any(not isinstance(step, tuple | list) for step in steps):
        raise InvalidConfig(field, steps, accepted)
    last = 0
    for step in steps:
        if len(step) != 2 or any(isinstance(value, bool) or not isinstance(value, int) for value in step):
            raise InvalidConfig(field, steps, accepted)
        if step[0] <= last or step[1] < 0:
            raise InvalidConfig(field, steps, accepted)
        last = step[0]


def _require_weights(field: str, weights: object) -> None:
    if not isinstance(weights, Mapping):
        raise InvalidConfig(field, weights, "a mapping of tenants to weights")
    for tenant, weight in weights.items():
        if not isinstance(tenant, str) or not _is_number(weight):
            raise InvalidConfig(field, weights, "names of tenants with finite weights above 0")
