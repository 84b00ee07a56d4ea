"""The public surface of sampling: logits to one token a row; knows nothing of requests or slots.

Order of work on a row: penalties, logit bias, banned tokens, temperature, top-k, top-p, min-p, draw. The draw
is a Gumbel-max over a counter-based hash of (seed, position, token id): a row draws the same token whatever
its neighbours, its place in the batch, the chunking of its prompt, or the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from llm_kernels.backends import by_row_backend, torch_backend, triton_backends
from llm_kernels.reference import sampling as reference
from llm_kernels.registry import FLOATS, Op
from llm_kernels.sampling_batch import SampleOutput, SamplingBatch, TokenRanks

_Draw: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]
_Filter: TypeAlias = Callable[[Tensor, SamplingBatch], Tensor]
_Ranks: TypeAlias = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor, Tensor]]

# At 256 rows of 151,936 tokens the torch form moves several gigabytes a step.
DRAW_TOKENS: Op[_Draw] = Op(
    "draw_tokens",
    [
        torch_backend(reference.draw_tokens),
        by_row_backend("draw_tokens"),
        *triton_backends("sampling", "draw_tokens", is_batch_invariant=True),
    ],
    default_size=151_936,
)
FILTER_THRESHOLDS: Op[_Filter] = Op(
    "filter_thresholds",
    [
        torch_backend(reference.filter_thresholds),
        by_row_backend("filter_thresholds"),
        *triton_backends("sampling_filters", "filter_thresholds", is_batch_invariant=True),
    ],
    default_size=151_936,
)

TOKEN_RANKS: Op[_Ranks] = Op(
    "token_ranks",
    [
        torch_backend(reference.token_ranks),
        by_row_backend("token_ranks"),
        *triton_backends("sampling_ranks", "token_ranks", is_batch_invariant=True),
    ],
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
    rows = _few_penalised_rows(params, logits.shape[0])
    if rows is None:
        tokens, faults = _draw(logits, params)
    else:
        tokens, faults = _draw(logits, replace(params, penalties=None))
        own_tokens, own_faults = _draw(logits.index_select(0, rows), _penalised_part(params, rows))
        tokens.index_copy_(0, rows, own_tokens)
        faults.index_copy_(0, rows, own_faults)
    ranks = None if params.num_logprobs is None else token_ranks(logits, tokens, params.num_logprobs)
    return SampleOutput(tokens=tokens, faults=faults, ranks_of_tokens=ranks)


def draw_tokens(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Chooses one token a row where nothing but the temperature concerns it, greedy rows among random ones.

    The same as `sample` for such rows. Nothing is decided on the host and nothing depends on the values, so
    a CUDA graph can hold it.

    Args:
        logits: [R, V], float32 or a half format.
        temperature: float32[R], at least 0; 0 is greedy.
        seeds: int64[R].
        positions: int64[R].

    Returns:
        int64[R] tokens; bool[R], the rows that hold NaN or +inf, or nothing but -inf.

    Raises:
        ValueError: The logits are not a floating-point matrix, or a column has not R entries.
    """
    _check_logits(logits)
    for name, column in (("temperature", temperature), ("seeds", seeds), ("positions", positions)):
        _check_column(name, column, logits.shape[0])
    draw = DRAW_TOKENS.pick(logits.device, logits.dtype, logits.shape[1])
    return draw(logits, temperature, seeds, positions, None, False)


def token_ranks(logits: Tensor, tokens: Tensor, num_top: int) -> TokenRanks:
    """Log probability and rank of one token a row, and the row's likeliest tokens.

    Args:
        logits: [R, V], raw; float32 or a half format.
        tokens: int64[R].
        num_top: How many of the likeliest tokens to report; 0 gives empty columns.

    Returns:
        The places of the tokens; `num_top` is cut to V.

    Raises:
        ValueError: The logits are not a floating-point matrix, or `tokens` has not R entries.
    """
    _check_logits(logits)
    _check_column("tokens", tokens, logits.shape[0])
    rank = TOKEN_RANKS.pick(logits.device, logits.dtype, logits.shape[1])
    logprobs, ranks, top_ids, top_logprobs = rank(logits, tokens, num_top)
    return TokenRanks(logprobs=logprobs, ranks=ranks, top_ids=top_ids, top_logprobs=top_logprobs)


def _draw(logits: Tensor, params: SamplingBatch) -> tuple[Tensor, Tensor]:
    work = reference.change_logits(logits, params)
    thresholds = None
    if params.uses_filters:
        find = FILTER_THRESHOLDS.pick(work.device, work.dtype, work.shape[1])
        thresholds = find(work, params)
    draw = DRAW_TOKENS.pick(work.device, work.dtype, work.shape[1])
    return draw(work, params.temperature, params.seeds, params.positions, thresholds, params.all_greedy)


def _few_penalised_rows(params: SamplingBatch, num_rows: int) -> Tensor | None:
    """Rows that are worth a float32 copy of their own, so that the others' logits are read as they are."""
    if params.penalties is None or params.logit_bias is not None or params.banned is not None:
        return None
    rows = params.penalties.rows
    return None if rows is None or 2 * len(rows) > num_rows else rows


def _penalised_part(params: SamplingBatch, rows: Tensor) -> SamplingBatch:
    """The batch of the penalised rows alone."""
    columns = ("temperature", "top_p", "min_p", "top_k", "seeds", "positions")
    assert params.penalties is not None
    return replace(
        params,
        **{name: getattr(params, name).index_select(0, rows) for name in columns},
        filtered_rows=None,
        penalties=replace(params.penalties, rows=None),
    )


def _check(logits: Tensor, params: SamplingBatch) -> None:
    _check_logits(logits)
    for name in ("temperature", "top_p", "min_p", "top_k", "seeds", "positions"):
        _check_column(name, getattr(params, name), logits.shape[0])


def _check_logits(logits: Tensor) -> None:
    if logits.dim() != 2 or logits.dtype not in FLOATS:
        raise ValueError(
            f"logits: must be [R, V] in float32 or a half format, got {logits.dtype}{list(logits.shape)}"
        )


def _check_column(name: str, column: Tensor, num_rows: int) -> None:
    if tuple(column.shape) != (num_rows,):
        raise ValueError(
            f"{name}: must have one entry for each of {num_rows} rows, got shape {tuple(column.shape)}"
        )
