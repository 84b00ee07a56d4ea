"""Logprobs of prompt tokens, gathered over the chunks of a prompt; knows nothing of sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from llm_kernels.ops import token_ranks
from torch import Tensor

from llm_engine.outputs import TokenLogprobs
from llm_engine.worker.logprobs import HostRanks

# Positions whose logits are in memory at once: 128 rows of a 152k vocabulary are 78 MB.
_POSITIONS_AT_ONCE = 128


class PromptLogprobsCollector:
    """One prompt's logprobs so far.

    Args:
        num_prompt_tokens: The prompt's length.
        num_top: How many likely tokens to report at each position.

    Attributes:
        planned: Positions that plans launched so far have computed.
    """

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_top = num_top
        self.planned = 0
        self._entries: list[TokenLogprobs | None] = [None]

    def add(self, chunk: list[HostRanks]) -> None:
        """Takes what a plan's chunk has brought, in order of plans."""
        for ranks in chunk:
            self._entries.extend(ranks.entries([self.num_top] * len(ranks.tokens)))

    def whole(self) -> tuple[TokenLogprobs | None, ...]:
        """One entry a prompt token; the first is None because nothing comes before it."""
        return tuple(self._entries)


def score_positions(
    hidden_TE: Tensor, targets: Tensor, num_top: int, to_logits: Callable[[Tensor], Tensor]
) -> list[HostRanks]:
    """Scores the successor of each position.

    Args:
        hidden_TE: Hidden states of the positions.
        targets: int64[T], the token after each position.
        num_top: Likely tokens to report.
        to_logits: The model's head.
    """
    found = []
    for start in range(0, len(targets), _POSITIONS_AT_ONCE):
        part = slice(start, start + _POSITIONS_AT_ONCE)
        logits = to_logits(hidden_TE[part]).to(torch.float32)
        found.append(HostRanks.start(targets[part], token_ranks(logits, targets[part], num_top)))
    return found
