"""Times batch-invariant ops against the usual ones on a GPU, as graph replays: microseconds and their ratio.

python3 benchmarks/gpu/deterministic.py
python3 benchmarks/offline.py --shape qwen3-8b --option deterministic=true   # whole engines
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext

import torch
from linear import SHAPES, copies_of, time_us
from llm_kernels import ops

BLOCK_SIZE, KV_HEADS, HEAD_SIZE = 16, 8, 128
TOKENS = (1, 64, 256, 8192)
DECODES = ((1, 640, 16), (1, 8192, 32), (64, 512, 32), (256, 540, 32))
PROMPTS = ((2, 4096, 16), (2, 4096, 32))
# Operations of one call beyond which one is enough to time.
_LARGE = 1e11


def both(name: str, call: Callable[[int], object], calls: int) -> None:
    """Prints the usual time, the invariant one and their ratio."""
    times = []
    for mode in (nullcontext, ops.batch_invariant):
        with mode():
            times.append(time_us(call, calls))
    print(f"{name:32} {times[0]:9.1f} {times[1]:9.1f} {times[1] / times[0]:6.2f}", flush=True)


def time_products(shapes: list[str]) -> None:
    """Linear layers over weights that are not in the L2 cache."""
    for shape in shapes:
        out_size, in_size = SHAPES[shape]
        weights = copies_of(out_size, in_size, torch.bfloat16)
        for tokens in TOKENS:
            x = torch.randn(tokens, in_size, dtype=torch.bfloat16, device="cuda")
            calls = 2 if 2.0 * tokens * out_size * in_size > _LARGE else len(weights)
            both(
                f"{shape}, {tokens} tokens",
                lambda index, x=x, weights=weights: ops.linear(x, weights[index % len(weights)]),
                calls,
            )


def metadata(queries: int, rows: int, context: int, tables: torch.Tensor) -> ops.AttentionMetadata:
    """Rows of one length, of which the last `queries` tokens are computed."""
    none = torch.empty(0, dtype=torch.int64, device="cuda")
    return ops.AttentionMetadata(
        cu_query_lens=torch.arange(0, rows * queries + 1, queries, dtype=torch.int32, device="cuda"),
        context_lens=torch.full((rows,), context, dtype=torch.int32, device="cuda"),
        block_tables=tables,
        slot_mapping=none,
        positions=none,
        num_decodes=rows if queries == 1 else 0,
        max_query_len=queries,
        max_context_len=context,
    )


def time_attention(rows: int, context: int, heads: int, *, prompts: bool) -> None:
    """One step of rows of one length: their last token, or all."""
    width = -(-context // BLOCK_SIZE)
    shape = (rows * width, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
    keys, values = (torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(2))
    tables = torch.randperm(rows * width, device="cuda").int().view(rows, width)
    queries = context if prompts else 1
    query = torch.randn(rows * queries, heads, HEAD_SIZE, device="cuda").to(torch.bfloat16)
    out, step = torch.empty_like(query), metadata(queries, rows, context, tables)
    kind = "prompts" if prompts else "decode"
    both(
        f"{kind} {rows} x {context}, {heads} heads",
        lambda _: ops.paged_attention(out, query, keys, values, step, scale=HEAD_SIZE**-0.5),
        2 if prompts else 8,
    )


def main() -> None:
    """Prints one line a problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=["0.6b o", "0.6b gate_up", "8b o", "8b down"])
    arguments = parser.parse_args()
    print(f"{'':32} {'usual us':>9} {'invariant':>9} {'ratio':>6}")
    for rows, context, heads in DECODES:
        time_attention(rows, context, heads, prompts=False)
    for rows, context, heads in PROMPTS:
        time_attention(rows, context, heads, prompts=True)
    time_products(arguments.shapes)


if __name__ == "__main__":
    main()
