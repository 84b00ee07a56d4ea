"""The Gumbel draw in one pass over the logits; knows nothing of filters, penalties or requests.

Filters and penalties have already written -inf or changed values; what is left is memory-bound: read each
logit once, hash (keys, token id), add the noise, keep the best of a tile. A second, tiny reduction over tiles
runs in torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.reference import sampling as reference

_TILE = 4096

# Triton kernels see module constants only as constexpr objects; 32-bit unsigned so that products wrap.
_STEP = tl.constexpr(reference.STEP & 0xFFFFFFFF)
_ROUND_1 = tl.constexpr(reference.ROUND_1)
_ROUND_2 = tl.constexpr(reference.ROUND_2 & 0xFFFFFFFF)
_ROUND_3 = tl.constexpr(reference.ROUND_3)
_LARGEST_UNIFORM = tl.constexpr(reference.LARGEST_UNIFORM)
_SMALLEST_TEMPERATURE = tl.constexpr(reference.SMALLEST_TEMPERATURE)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_best(
    logits: tl.tensor,
    row_max: tl.tensor,
    temperature: tl.tensor,
    key_a: tl.tensor,
    key_b: tl.tensor,
    best_score: tl.tensor,
    best_token: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    num_tiles: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """One program per (row, tile): the best score in the tile and its lowest token id."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab
    value = tl.load(logits + row * stride + token, mask=inside, other=float("-inf"))
    a = tl.load(key_a + row).to(tl.uint32, bitcast=True)
    b = tl.load(key_b + row).to(tl.uint32, bitcast=True)
    x = token.to(tl.uint32) * tl.full((), _STEP, tl.uint32) + a
    x = (x ^ (x >> 16)) * tl.full((), _ROUND_1, tl.uint32)
    x = x ^ b
    x = (x ^ (x >> 15)) * tl.full((), _ROUND_2, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), _ROUND_3, tl.uint32)
    x = x ^ (x >> 16)
    uniform = tl.minimum((x.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), _LARGEST_UNIFORM)
    # log1p(-u) for u below 2^-12 by its series: log(1 - u) would lose the low bits of u. Error below 2^-36
    # relative.
    small = uniform + uniform * uniform * (0.5 + uniform * (1.0 / 3.0))
    exponential = tl.where(uniform < 0.000244140625, small, -tl.log(1.0 - uniform))
    scale = tl.maximum(tl.load(temperature + row), _SMALLEST_TEMPERATURE)
    score = (value - tl.load(row_max + row)) / scale - tl.log(exponential)
    score = tl.where(inside, score, float("-inf"))
    top = tl.max(score, axis=0)
    # Where every score of the tile is -inf the first token stands for it, as argmax has it.
    first = tl.min(tl.where((score == top) & inside, token, vocab - 1), axis=0)
    tl.store(best_score + row * num_tiles + tile, top)
    tl.store(best_token + row * num_tiles + tile, first)


def gumbel_argmax(
    logits: Tensor, row_max: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """As `llm_kernels.reference.sampling.gumbel_argmax`; equal to it up to ties within float rounding."""
    num_rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    key_a, key_b = reference.row_keys(seeds, positions)
    num_tiles = triton.cdiv(vocab, _TILE)
    best_score = torch.empty((num_rows, num_tiles), dtype=torch.float32, device=logits.device)
    best_token = torch.empty((num_rows, num_tiles), dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    _tile_best[(num_rows, num_tiles)](
        logits,
        row_max,
        temperature,
        key_a,
        key_b,
        best_score,
        best_token,
        vocab,
        logits.stride(0),
        num_tiles,
        TILE=_TILE,
    )
    tile = best_score.argmax(dim=-1, keepdim=True)
    return best_token.gather(1, tile).squeeze(1).to(torch.int64)
