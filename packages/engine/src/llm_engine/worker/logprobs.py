"""Turns logprob tensors into what leaves the worker; knows nothing of sampling or text.

`StepResult.logprobs[row]` is a tuple of `TokenLogprobs`, one for each token of that row in the step.
`StepResult.prompt_logprobs[row]` is a tuple with one entry per prompt token, the first None. It comes once,
whole, with the step that ends the prompt, however many chunks the prompt took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llm_kernels.ops import TokenRanks
from torch import Tensor

from llm_engine.outputs import TokenLogprobs
from llm_engine.worker.upload import download

PromptLogprobs: TypeAlias = tuple[TokenLogprobs | None, ...]

# JSON has no infinity; the value every OpenAI-like server reports for an impossible token.
IMPOSSIBLE = -9999.0


@dataclass(frozen=True, slots=True)
class HostRanks:
    """`TokenRanks` on their way to the host, with the tokens they are about: int64[L]."""

    tokens: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def start(cls, tokens: Tensor, ranks: TokenRanks) -> HostRanks:
        """Starts the copies; readable once an event recorded after them has passed."""
        return cls(
            download(tokens),
            download(ranks.logprobs),
            download(ranks.ranks),
            download(ranks.top_ids),
            download(ranks.top_logprobs),
        )

    def entries(self, wanted: Sequence[int]) -> list[TokenLogprobs]:
        """One entry a token, row `i` with its `wanted[i]` likeliest tokens."""
        rows = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_ids.tolist(),
            self.top_logprobs.tolist(),
            wanted,
            strict=True,
        )
        return [
            TokenLogprobs(
                token,
                _finite(logprob),
                rank,
                tuple((i, _finite(p)) for i, p in zip(ids[:count], values[:count], strict=True)),
            )
            for token, logprob, rank, ids, values, count in rows
        ]


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
