"""The public surface of sampling: logits to one token a row; knows nothing of requests or slots.

Order of work on a row: penalties, logit bias, banned tokens, temperature, top-k, top-p, min-p, draw. The draw
is a Gumbel-max over a counter-based hash of (seed, position, token id): a row draws the same token whatever
its neighbours, its place in the batch, the chunking of its prompt, or the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.reference import sampling as reference
from llm_kernels.registry import FLOATS, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Penalties of P rows, with what these rows already hold.

    Attributes:
        presence: float32[P], subtracted once from tokens in the output.
        frequency: float32[P], subtracted for each occurrence in the output.
        repetition: float32[P], divides positive and multiplies negative logits of tokens in prompt or output.
        output_counts: int32[P, V], occurrences in the output.
        prompt_mask: bool[P, V], whether the token is in the prompt.
        rows: int64[P], the rows of the logits concerned, each once; None: all rows in order (P == R).
    """

    presence: Tensor
    frequency: Tensor
    repetition: Tensor
    output_counts: Tensor
    prompt_mask: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How to choose the tokens of R rows; tensors on the logits' device, flags on the host.

    The flags let work be skipped without asking the device, and `filtered_rows` confines the work of top-k,
    top-p and min-p to the rows that use them. A flag that is set wrongly (off although a row uses the filter)
    disables the filter.

    Attributes:
        temperature: float32[R], at least 0; 0 is greedy.
        top_p: float32[R] in (0, 1]; 1 keeps all.
        min_p: float32[R] in [0, 1]; 0 keeps all.
        top_k: int32[R]; 0 keeps all.
        seeds: int64[R], the row's random stream.
        positions: int64[R], index of the drawn token in its sequence: the counter of the stream.
        all_greedy: Every temperature is 0.
        max_top_k: Largest top_k of the batch; 0: no row uses top-k.
        any_top_p: Some top_p is below 1.
        any_min_p: Some min_p is above 0.
        every_top_p_has_top_k: Each row with top_p below 1 has a top_k as well, so no row needs a full sort.
        filtered_rows: int64[F], the rows with any of top-k, top-p, min-p; None: all rows may have.
        penalties: None where no row has penalties.
        logit_bias: (row int64[M], token int64[M], value float32[M]), each pair once; None: no bias.
        banned: (row int64[M], token int64[M]), tokens that cannot be drawn; None: none.
        num_logprobs: Number of most likely tokens to report (0: the sampled one only); None: no logprobs.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    positions: Tensor
    all_greedy: bool = False
    max_top_k: int = 0
    any_top_p: bool = False
    any_min_p: bool = False
    every_top_p_has_top_k: bool = False
    filtered_rows: Tensor | None = None
    penalties: Penalties | None = None
    logit_bias: tuple[Tensor, Tensor, Tensor] | None = None
    banned: tuple[Tensor, Tensor] | None = None
    num_logprobs: int | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether any step before the draw writes to the logits."""
        return (
            self.penalties is not None
            or self.logit_bias is not None
            or self.banned is not None
            or self.uses_filters
        )

    @property
    def uses_filters(self) -> bool:
        """Whether any row that is not greedy may use top-k, top-p or min-p."""
        return not self.all_greedy and (self.max_top_k > 0 or self.any_top_p or self.any_min_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanks:
    """Where given tokens stand in the raw distribution of their rows.

    Attributes:
        logprobs: float32[R], log probability of the token.
        ranks: int64[R], 1 for the likeliest; tokens of equal logit share the best rank.
        top_ids: int64[R, k], likeliest tokens, best first.
        top_logprobs: float32[R, k].
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutput:
    """The tokens chosen for R rows.

    Attributes:
        tokens: int64[R].
        faults: bool[R]; True where the row holds NaN or +inf, or nothing but -inf: its token means nothing.
        ranks_of_tokens: Logprobs of the raw distribution; None where `num_logprobs` was None.
    """

    tokens: Tensor
    faults: Tensor
    ranks_of_tokens: TokenRanks | None = None

    @property
    def logprobs(self) -> Tensor | None:
        """float32[R], raw log probability of the sampled token."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.logprobs

    @property
    def ranks(self) -> Tensor | None:
        """int64[R], rank of the sampled token in the raw distribution."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.ranks

    @property
    def top_ids(self) -> Tensor | None:
        """int64[R, k], likeliest tokens."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.top_ids

    @property
    def top_logprobs(self) -> Tensor | None:
        """float32[R, k], log probabilities of `top_ids`."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.top_logprobs


_Draw: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]

# Only the draw has a fused form: at 256 rows of 151,936 tokens its torch form moves several gigabytes a step.
DRAW_TOKENS: Op[_Draw] = Op(
    "draw_tokens",
    [torch_backend(reference.draw_tokens), *triton_backends("sampling", "draw_tokens")],
    default_size=151_936,
)


def sample(logits: Tensor, params: SamplingBatch) -> SampleOutput:
    """Chooses one token for each row. Nothing waits for the device; the logits are left as they are.

    Args:
        logits: [R, V], float32 or a half format. Half logits are read as they are where nothing but the
            temperature concerns them, and widened otherwise.
        params: One entry for each row.

    Returns:
        Tokens, faults, and logprobs where asked for.

    Raises:
        ValueError: The logits are not a floating-point matrix, or a parameter has not R entries; the field is
            named.
    """
    _check(logits, params)
    if params.changes_logits or params.num_logprobs is not None:
        logits = logits.float()
    work = reference.process_logits(logits, params)
    draw = DRAW_TOKENS.pick(work.device, work.dtype, work.shape[1])
    tokens, faults = draw(work, params.temperature, params.seeds, params.positions, params.all_greedy)
    ranks = None if params.num_logprobs is None else token_ranks(logits, tokens, params.num_logprobs)
    return SampleOutput(tokens=tokens, faults=faults, ranks_of_tokens=ranks)


def token_ranks(logits: Tensor, tokens: Tensor, num_top: int) -> TokenRanks:
    """Log probability and rank of one token a row, and the row's likeliest tokens.

    Args:
        logits: float32[R, V], raw.
        tokens: int64[R].
        num_top: How many of the likeliest tokens to report; 0 gives empty columns.

    Returns:
        The places of the tokens; `num_top` is cut to V.
    """
    logprobs, ranks, top_ids, top_logprobs = reference.token_ranks(logits, tokens, num_top)
    return TokenRanks(logprobs=logprobs, ranks=ranks, top_ids=top_ids, top_logprobs=top_logprobs)


def _check(logits: Tensor, params: SamplingBatch) -> None:
    if logits.dim() != 2 or logits.dtype not in FLOATS:
        raise ValueError(
            f"logits: must be [R, V] in float32 or a half format, got {logits.dtype}{list(logits.shape)}"
        )
    num_rows = logits.shape[0]
    for name in ("temperature", "top_p", "min_p", "top_k", "seeds", "positions"):
        shape = tuple(getattr(params, name).shape)
        if shape != (num_rows,):
            raise ValueError(f"{name}: must have one entry for each of {num_rows} rows, got shape {shape}")
