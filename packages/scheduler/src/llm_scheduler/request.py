"""A request as callers hand it in, and its state in a scheduler; knows nothing of plans or of the cache."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from llm_scheduler.plan import Int32

OrderKey = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderItem:
    """An image, a sound or the like whose placeholder tokens need the output of an encoder.

    Attributes:
        position: Index of its first placeholder token in the prompt.
        num_tokens: Placeholder tokens, at least 1.
        encoder_tokens: What the encoder computes for it, at least 1; counts against ``encoder_budget``.
    """

    position: int
    num_tokens: int
    encoder_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One sequence to generate.

    Attributes:
        request_id: Unique among live requests.
        token_ids: int32[n], the prompt; at least one token, fewer than ``max_model_len``.
        max_tokens: Most output tokens, at least 1.
        min_tokens: Outputs before a stop token may end the request.
        stop_token_ids: Tokens that end it; the end-of-sequence token included by the caller unless ignored.
        priority: Lower runs first, under the ``priority`` policy.
        arrival_s: Arrival on the caller's clock, seconds; equal values keep the order of ``add``.
        deadline_s: When its last token must be there, on the scheduler's clock (``time.monotonic`` unless it
            was made with another); None for no deadline.
        tenant: Whose request it is; for the ``fair`` policy and the cap by tenant.
        salt: Extra key of the prefix cache: only requests with the same salt share blocks.
        lora: Adapter version; extra key of the prefix cache.
        media: (position of the first placeholder token, digest of the contents) of each image or sound; extra
            key of the prefix cache: placeholders alone do not tell one image from another.
        match_prefix: False where every prompt position must be computed (prompt logprobs).
        waits_for: Names of what must be ready before it may run, such as a compiled grammar; each is reported
            by ``TokenBudgetScheduler.ready``. It does not hold up the queue meanwhile.
        encoder_items: Its images and the like, by position and without overlaps.
        output_token_ids: Tokens that it yielded already, under another scheduler: it goes on behind them as
            after a preemption. They count for ``max_tokens`` and ``min_tokens`` and are not given out again.
        payload: Opaque; travels to the worker in ``NewRow``.
    """

    request_id: str
    token_ids: Int32
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    arrival_s: float = 0.0
    deadline_s: float | None = None
    tenant: str = ""
    salt: bytes | None = None
    lora: str | None = None
    media: tuple[tuple[int, bytes], ...] = ()
    match_prefix: bool = True
    waits_for: frozenset[str] = frozenset()
    encoder_items: tuple[EncoderItem, ...] = ()
    output_token_ids: tuple[int, ...] = ()
    payload: object = None


@dataclass(slots=True, eq=False)
class RequestState:
    """A live request inside the scheduler.

    Attributes:
        request: What was asked; its ``token_ids`` is a private int32 array.
        key: Place among the requests of its lane; unique.
        urgency: Its class by the policy; smaller goes first and may preempt.
        lane: The lane that the policy put it in.
        max_outputs: Outputs at which it ends with "length".
        stop_token_ids: The request's, at hand for every token.
        waits_for: What is not ready yet; it is not in the queue's order until this is empty.
        rank: Place among the running requests, unique; set when it moves in.
        age: Place among the waiting requests by how long they were passed over; see ``aging``.
        num_overtaken: Later requests that overtook it in earlier stays in the queue, and preemptions.
        promotion: 0, or its number among the requests that aging has put first.
        outputs: Tokens known so far beyond the prompt.
        seq: Its sequence in the cache, or -1 before the first try to admit it.
        slot: Its slot, or -1 while it waits.
        tokens_in_flight: While it waits after a preemption: sampled tokens not yet known.
        num_cached_tokens: Prefix hit at the first admission, or -1 before it.
        was_preempted: It lost its blocks before.
        asked_remote: Its KV was sought elsewhere once; it is not again.
        is_loading: It holds slot and blocks while its KV is brought, and does not run.
        finished: It ended; whatever is still in flight for it is dropped.
    """

    request: Request
    key: OrderKey
    urgency: int
    lane: Hashable
    max_outputs: int
    stop_token_ids: frozenset[int]
    waits_for: set[str]
    rank: OrderKey = ()
    age: OrderKey = ()
    num_overtaken: int = 0
    promotion: int = 0
    outputs: array[int] = field(default_factory=lambda: array("i"))
    seq: int = -1
    slot: int = -1
    tokens_in_flight: int = 0
    num_cached_tokens: int = -1
    was_preempted: bool = False
    asked_remote: bool = False
    is_loading: bool = False
    finished: bool = False

    def yields_to(self, other: RequestState) -> bool:
        """Tell whether it may be preempted for another request."""
        return not self.promotion and other.urgency < self.urgency

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and known outputs."""
        return len(self.request.token_ids) + len(self.outputs)

    def known_token_ids(self) -> Int32:
        """Return int32[n]: prompt and known outputs."""
        if not self.outputs:
            return self.request.token_ids
        return np.concatenate([self.request.token_ids, np.array(self.outputs, np.int32)])
