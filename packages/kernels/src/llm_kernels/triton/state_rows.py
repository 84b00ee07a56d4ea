"""Device functions the recurrent kernels share: where a row's states lie, softplus; knows no op."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def row_tokens(
    cu_query_lens: tl.tensor, row: tl.tensor, IS_DECODE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """First token of a row and the one behind its last; a decode row r is token r."""
    if IS_DECODE:
        begin = row.to(tl.int32)
        end = begin + 1
    else:
        begin = tl.load(cu_query_lens + row)
        end = tl.load(cu_query_lens + row + 1)
    return begin, end


@triton.jit  # type: ignore[untyped-decorator]
def state_block(table: tl.tensor, position: tl.tensor, block_size: tl.tensor) -> tl.tensor:
    """Block of the state after the token at `position`."""
    return tl.load(table + position // block_size).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x)), exact for small exp(x) too: log(u) e / (u - 1) mends the rounding of u = 1 + e."""
    small = tl.exp(tl.minimum(x, 20.0))
    above = 1.0 + small
    mended = tl.log(above) * (small / tl.where(above == 1.0, 1.0, above - 1.0))
    return tl.where(x > 20.0, x, tl.where(above == 1.0, small, mended))
