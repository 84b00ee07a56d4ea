"""Sampling parameters by slot, on the host; knows nothing of devices or logits.

They stay in numpy because every step needs only a few words a row, which travel in the step's one packed
copy, and because the decisions they lead to (is a sort needed, is anything random) must not wait for the
device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llm_scheduler import NewRow
from numpy.typing import NDArray

from llm_engine.worker.errors import PlanError
from llm_engine.worker.prompt_logprobs import PromptLogprobsCollector
from llm_engine.worker.row_params import RowParams

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class TokenBias:
    """Logit bias of a slot: token ids int64[n], values float32[n]."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


class SlotParams:
    """Columns of parameters, one entry a slot.

    Args:
        num_slots: Number of slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_p = np.ones(num_slots, np.float32)
        self.min_p = np.zeros(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int32)
        self.presence = np.zeros(num_slots, np.float32)
        self.frequency = np.zeros(num_slots, np.float32)
        self.repetition = np.ones(num_slots, np.float32)
        self.seeds = np.zeros(num_slots, np.int64)
        self.num_logprobs = np.full(num_slots, NO_LOGPROBS, np.int32)
        self.num_prompt_tokens = np.zeros(num_slots, np.int32)
        # Position of the first token that may be a stop token.
        self.stop_allowed_from = np.zeros(num_slots, np.int32)
        self.has_penalties = np.zeros(num_slots, np.bool_)
        self.has_bias = np.zeros(num_slots, np.bool_)
        self.has_filters = np.zeros(num_slots, np.bool_)
        # Nothing but temperature and filters concerns the draw, once `stop_allowed_from` is reached.
        self.is_plain = np.ones(num_slots, np.bool_)
        self.wants_prompt_logprobs = np.zeros(num_slots, np.bool_)
        self.bias: dict[int, TokenBias] = {}
        self.stop_ids: dict[int, NDArray[np.int64]] = {}
        self.prompt_logprobs: dict[int, PromptLogprobsCollector] = {}

    def admit(self, row: NewRow) -> None:
        """Takes over the parameters of a row, whatever the slot held before.

        Raises:
            PlanError: The payload is no `RowParams`.
        """
        params = row.payload
        if not isinstance(params, RowParams):
            raise PlanError(
                f"request {row.request_id}: payload must be RowParams, got {type(params).__name__}"
            )
        slot = row.slot
        self._forget(slot)
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.top_k[slot] = min(params.top_k, np.iinfo(np.int32).max)
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.repetition[slot] = params.repetition_penalty
        self.seeds[slot] = params.seed
        self.num_logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.num_prompt_tokens[slot] = row.num_prompt_tokens
        self.has_penalties[slot] = params.has_penalties
        self.has_filters[slot] = params.has_filters
        self.is_plain[slot] = params.is_plain
        self._take_lists(row, params)

    def release(self, slots: NDArray[np.int32]) -> None:
        """Drops what the slots hold outside the columns."""
        for slot in slots.tolist():
            self._forget(slot)

    def all_plain(self, slots: NDArray[np.int32], positions: NDArray[np.int32]) -> bool:
        """Whether only temperatures and filters concern the tokens at `positions`; no logprobs are wanted."""
        if not self.is_plain[slots].all():
            return False
        if self.stop_ids and (positions < self.stop_allowed_from[slots]).any():
            return False
        return not (self.prompt_logprobs and self.wants_prompt_logprobs[slots].any())

    def drop_prompt_logprobs(self, slot: int) -> None:
        """Ends the collecting of prompt logprobs for a slot: all are planned, or none can be had."""
        self.wants_prompt_logprobs[slot] = False
        self.prompt_logprobs.pop(slot, None)

    def _take_lists(self, row: NewRow, params: RowParams) -> None:
        slot = row.slot
        if params.min_tokens > 0 and params.stop_token_ids:
            self.stop_allowed_from[slot] = row.num_prompt_tokens + params.min_tokens
            self.stop_ids[slot] = np.asarray(params.stop_token_ids, np.int64)
        if params.logit_bias:
            self.has_bias[slot] = True
            self.bias[slot] = TokenBias(
                np.fromiter(params.logit_bias.keys(), np.int64),
                np.fromiter(params.logit_bias.values(), np.float32),
            )
        # A row that has outputs already is back from a preemption: its prompt logprobs went out before.
        if params.prompt_logprobs is not None and len(row.token_ids) == row.num_prompt_tokens:
            self.wants_prompt_logprobs[slot] = True
            self.prompt_logprobs[slot] = PromptLogprobsCollector(
                row.num_prompt_tokens, params.prompt_logprobs
            )

    def _forget(self, slot: int) -> None:
        self.has_bias[slot] = self.wants_prompt_logprobs[slot] = False
        self.stop_allowed_from[slot] = 0
        self.bias.pop(slot, None)
        self.stop_ids.pop(slot, None)
        self.prompt_logprobs.pop(slot, None)
