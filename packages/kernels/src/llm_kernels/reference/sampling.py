"""Sampling in plain torch, for every device; knows nothing of back ends, requests or slots.

The random numbers: `row_keys` turns (seed, position) into two 32-bit keys, `hash_bits` turns keys and token
ids into 32 bits each with three multiply-xorshift rounds. All of it is integer arithmetic that wraps modulo
2^32, written so that torch on any device, Triton and numpy agree bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llm_kernels.sampling_batch import Penalties, SamplingBatch

# Odd constants with well mixed bits; as signed 32-bit numbers because torch has no wrapping unsigned
# arithmetic.
STEP = 0x9E3779B9 - 2**32
ROUND_1 = 0x21F0AAAD
ROUND_2 = 0xD35A2D97 - 2**32
ROUND_3 = 0x735A2D97
SPLIT_ADD = 0x9E3779B97F4A7C15 - 2**64
SPLIT_1 = 0xBF58476D1CE4E5B9 - 2**64
SPLIT_2 = 0x94D049BB133111EB - 2**64
# Largest float32 below 1: log1p(-u) stays finite.
LARGEST_UNIFORM = 1.0 - 2.0**-24
# A temperature below it cannot be told from greedy in float32, and dividing by it would overflow.
SMALLEST_TEMPERATURE = 1e-30


def process_logits(logits: Tensor, params: SamplingBatch) -> Tensor:
    """Applies everything that comes before the draw, but the division by the temperature.

    Args:
        logits: float32[R, V]; not changed.
        params: The rows' parameters.

    Returns:
        float32[R, V], -inf where a token cannot be drawn; the very same tensor where nothing changes.
    """
    work = change_logits(logits, params)
    if not params.uses_filters:
        return work
    return work.masked_fill(work < filter_thresholds(work, params)[:, None], -torch.inf)


def change_logits(logits: Tensor, params: SamplingBatch) -> Tensor:
    """Applies penalties, bias and bans.

    Args:
        logits: [R, V], float32 or a half format; not changed.
        params: The rows' parameters.

    Returns:
        float32[R, V], or the very same tensor where no row has any of them.
    """
    if params.penalties is None and params.logit_bias is None and params.banned is None:
        return logits
    work = logits.to(torch.float32, copy=True)
    if params.penalties is not None:
        apply_penalties(work, params.penalties)
    if params.logit_bias is not None:
        rows, tokens, values = params.logit_bias
        work.index_put_((rows, tokens), values, accumulate=True)
    if params.banned is not None:
        work.index_put_(params.banned, torch.full((), -torch.inf, device=work.device))
    return work


def apply_penalties(logits: Tensor, penalties: Penalties) -> None:
    """Applies repetition, presence and frequency penalties in place to the rows concerned (float32[R, V])."""
    work = logits if penalties.rows is None else logits.index_select(0, penalties.rows)
    used = penalties.output_counts > 0
    repetition = penalties.repetition[:, None]
    scaled = torch.where(work > 0, work / repetition, work * repetition)
    work = torch.where(used | penalties.prompt_mask, scaled, work)
    work -= penalties.presence[:, None] * used
    work -= penalties.frequency[:, None] * penalties.output_counts
    if penalties.rows is None:
        logits.copy_(work)
    else:
        logits.index_copy_(0, penalties.rows, work)


def filter_thresholds(logits: Tensor, params: SamplingBatch) -> Tensor:
    """The least logit that top-k, top-p and min-p keep in each row; each sees what the one before it kept.

    Tokens of exactly equal logit at a border are kept together, so no result depends on how a device sorts.

    Args:
        logits: [R, V], float32 or a half format.
        params: The rows' parameters.

    Returns:
        float32[R], -inf for rows without filters.
    """
    rows = params.filtered_rows
    work = (logits if rows is None else logits.index_select(0, rows)).float()
    greedy = _select(params.temperature, rows) == 0
    # A greedy row's token is its largest logit, which no filter removes; any finite temperature will do.
    temperature = torch.where(greedy, 1.0, _select(params.temperature, rows)).clamp_min(SMALLEST_TEMPERATURE)
    scaled = (work - _finite_max(work)) / temperature[:, None]
    threshold = torch.full_like(temperature, -torch.inf)
    if params.max_top_k > 0 or params.any_top_p:
        threshold = _sorted_threshold(scaled, params, rows)
    if params.any_min_p:
        # In this scale the largest value is 0, so the relative probability of a token is exp(value).
        threshold = torch.maximum(threshold, _select(params.min_p, rows).log())
    # Scaling keeps the order, so what is kept are the logits from some least one on.
    kept = work.masked_fill(scaled < threshold[:, None], torch.inf).amin(dim=-1)
    if rows is None:
        return kept
    everything = torch.full((len(logits),), -torch.inf, device=logits.device)
    return everything.index_copy_(0, rows, kept)


def draw_tokens(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    thresholds: Tensor | None,
    all_greedy: bool,
) -> tuple[Tensor, Tensor]:
    """Chooses one token a row: the largest logit where the temperature is 0, else a draw from the softmax.

    Args:
        logits: [R, V], float32 or a half format; -inf where a token cannot be drawn.
        temperature: float32[R].
        seeds: int64[R].
        positions: int64[R].
        thresholds: float32[R], the least logit that a row may draw; None: all may be drawn. Not above the
            largest logit of the row; greedy rows have no use for it.
        all_greedy: Every temperature is 0; may be left unsaid.

    Returns:
        int64[R] tokens, the lowest id at ties; bool[R], whether the row holds NaN or +inf or nothing but
        -inf, in which case its token is some valid id.
    """
    logits = logits.float()
    best = logits.max(dim=-1)
    faults = ~torch.isfinite(best.values)
    if all_greedy:
        return best.indices, faults
    if thresholds is not None:
        logits = logits.masked_fill(logits < thresholds[:, None], -torch.inf)
    drawn = gumbel_argmax(logits, best.values, temperature, seeds, positions)
    return torch.where(temperature == 0, best.indices, drawn), faults


def gumbel_argmax(
    logits: Tensor, row_max: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """Draws one token a row from softmax(logits / temperature), the lowest id at ties.

    Args:
        logits: float32[R, V].
        row_max: float32[R], the largest logit of each row.
        temperature: float32[R]; rows with 0 get a token that the caller replaces.
        seeds: int64[R].
        positions: int64[R].

    Returns:
        int64[R].
    """
    key_a, key_b = row_keys(seeds, positions)
    uniform = hash_uniform(key_a, key_b, logits.shape[1])
    # Gumbel noise is -log(E) with E exponential; E = -log1p(-u) is exact for small u, where the winners are.
    noise = torch.log1p(uniform.neg_()).neg_().log_().neg_()
    scaled = (logits - row_max[:, None]) / temperature.clamp_min(SMALLEST_TEMPERATURE)[:, None]
    return scaled.add_(noise).argmax(dim=-1)


def row_keys(seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit keys for each (seed, position), by two rounds of a 64-bit multiply-xorshift hash.

    Args:
        seeds: int64[R], all 64 bits count.
        positions: int64[R].

    Returns:
        int32[R] twice.
    """
    mixed = _mix64(_mix64(seeds + SPLIT_ADD) + positions)
    return mixed.to(torch.int32), (mixed >> 32).to(torch.int32)


def hash_bits(key_a: Tensor, key_b: Tensor, num_tokens: int) -> Tensor:
    """32 hashed bits for each row and token id, int32[R, num_tokens], from the rows' keys, int32[R]."""
    x = torch.arange(num_tokens, dtype=torch.int32, device=key_a.device)
    x = (x * STEP)[None, :] + key_a[:, None]
    x.bitwise_xor_(_shift(x, 16)).mul_(ROUND_1)
    x.bitwise_xor_(key_b[:, None])
    x.bitwise_xor_(_shift(x, 15)).mul_(ROUND_2)
    x.bitwise_xor_(_shift(x, 13)).mul_(ROUND_3)
    return x.bitwise_xor_(_shift(x, 16))


def hash_uniform(key_a: Tensor, key_b: Tensor, num_tokens: int) -> Tensor:
    """Uniform numbers in (0, 1), float32[R, num_tokens], fine-grained near 0 (steps of 2^-32)."""
    bits = hash_bits(key_a, key_b, num_tokens)
    # A signed number plus 2^31 in float32 would lose the low bits of small values, so the sign is folded
    # first.
    unsigned = torch.where(bits < 0, bits.to(torch.float32) + 2.0**32, bits.to(torch.float32))
    return unsigned.add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_UNIFORM)


def token_ranks(logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reference of `ops.token_ranks`: logprobs, ranks, top ids, top logprobs."""
    logits = logits.float()
    chosen = logits.gather(1, tokens[:, None])
    log_sum = torch.logsumexp(logits, dim=-1, keepdim=True)
    ranks = (logits > chosen).sum(dim=-1) + 1
    top = torch.topk(logits, min(num_top, logits.shape[1]), dim=-1)
    return (chosen - log_sum).squeeze(1), ranks, top.indices, top.values - log_sum


def _sorted_threshold(scaled: Tensor, params: SamplingBatch, rows: Tensor | None) -> Tensor:
    """The smallest scaled logit (float32[F, V]) that top-k, then top-p, keep in each row: float32[F]."""
    vocab = scaled.shape[1]
    top_k = _select(params.top_k, rows).to(torch.int64)
    top_k = torch.where((top_k <= 0) | (top_k > vocab), vocab, top_k)
    only_top_k = not params.any_top_p or params.every_top_p_has_top_k
    width = min(params.max_top_k, vocab) if only_top_k and params.max_top_k > 0 else vocab
    values = (
        torch.topk(scaled, width, dim=-1).values
        if width < vocab
        else scaled.sort(dim=-1, descending=True).values
    )
    # A row without top-k keeps everything: where the table is narrower than the vocabulary it has no top-p
    # either.
    kth = values.gather(1, (top_k.clamp(max=width) - 1)[:, None]).squeeze(1)
    threshold = torch.where(top_k <= width, kth, -torch.inf) if width < vocab else kth
    if not params.any_top_p:
        return threshold
    nucleus = _nucleus_threshold(values, threshold, _select(params.top_p, rows))
    return torch.maximum(threshold, nucleus)


def _nucleus_threshold(values: Tensor, kept_from: Tensor, top_p: Tensor) -> Tensor:
    """Least of the falling values (float32[F, W]) in the nucleus of those at or above `kept_from`."""
    weights = torch.where(values >= kept_from[:, None], values.exp(), 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    before = weights.cumsum(dim=-1) - weights
    inside = before < top_p[:, None] * total
    # The first value is always inside, whatever rounding does to a tiny top_p.
    last = inside.sum(dim=-1).clamp_min(1) - 1
    threshold = values.gather(1, last[:, None]).squeeze(1)
    return torch.where(top_p >= 1.0, -torch.inf, threshold)


def _finite_max(logits: Tensor) -> Tensor:
    """Row maxima float32[F, 1], 0 for rows without a finite one (they are reported as faults elsewhere)."""
    largest = logits.amax(dim=-1, keepdim=True)
    return torch.where(torch.isfinite(largest), largest, 0.0)


def _select(column: Tensor, rows: Tensor | None) -> Tensor:
    return column if rows is None else column.index_select(0, rows)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int32 (torch's is arithmetic)."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _shift64(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shift64(x, 30)) * SPLIT_1
    x = (x ^ _shift64(x, 27)) * SPLIT_2
    return x ^ _shift64(x, 31)
