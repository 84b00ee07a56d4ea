"""Times causal prefill attention over a paged cache, back ends in turns, against the operations it needs.

python3 benchmarks/gpu/prefill_attention.py                       # head size 128, 32/8 heads
python3 benchmarks/gpu/prefill_attention.py --head-size 64 --rows 1x8192:8192 128x64:2112

Bursts are short, with pauses between them: under a load of a second the chip lowers its clock, and whoever is
measured later looks slower. `--sustained` times a second without pauses.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from llm_kernels import ops

ROWS = ("1x8192:8192", "2x4096:4096", "8x1024:1024", "32x256:256", "2x2048:8192", "128x64:2112")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One call: tensors of `ops.paged_attention`, and the operations of the keys that queries see."""

    out: torch.Tensor
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    metadata: ops.AttentionMetadata
    operations: int

    def run(self) -> None:
        """Enqueues the call."""
        scale = self.query.shape[-1] ** -0.5
        ops.paged_attention(
            self.out, self.query, self.key_cache, self.value_cache, self.metadata, scale=scale
        )


def problem(rows: str, heads: tuple[int, int], head_size: int, block_size: int) -> Problem:
    """`rows`: COUNTxQUERIES:CONTEXT. Blocks are shuffled, values are normal."""
    count, queries, context = (int(x) for x in rows.replace("x", ":").split(":"))
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    blocks = -(-context // block_size)
    tables = torch.randperm(count * blocks, generator=generator, device="cuda").int().view(count, blocks)
    query = randn(count * queries, heads[0], head_size)
    empty = torch.empty(0, dtype=torch.int64, device="cuda")
    return Problem(
        out=torch.empty_like(query),
        query=query,
        key_cache=randn(count * blocks, block_size, heads[1], head_size),
        value_cache=randn(count * blocks, block_size, heads[1], head_size),
        metadata=ops.AttentionMetadata(
            cu_query_lens=torch.arange(count + 1, dtype=torch.int32, device="cuda") * queries,
            context_lens=torch.full((count,), context, dtype=torch.int32, device="cuda"),
            block_tables=tables,
            slot_mapping=empty,
            positions=empty,
            num_decodes=0,
            max_query_len=queries,
            max_context_len=context,
        ),
        operations=4 * head_size * heads[0] * count * (queries * context - queries * (queries - 1) // 2),
    )


def seconds(run: Callable[[], None], calls: int) -> float:
    """Of one of `calls` calls, back to back."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls / 1e3


def burst(run: Callable[[], None]) -> float:
    """Seconds of a call on a rested chip."""
    time.sleep(0.05)
    return seconds(run, 4)


def main() -> None:
    """Prints a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=ROWS, help="COUNTxQUERIES:CONTEXT ...")
    parser.add_argument("--heads", type=int, nargs=2, default=(32, 8), help="query heads, KV heads")
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--backends", nargs="+", default=("cuda", "triton"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sustained", action="store_true")
    options = parser.parse_args()
    for rows in options.rows:
        given = problem(rows, tuple(options.heads), options.head_size, options.block_size)
        times: dict[str, list[float]] = {name: [] for name in options.backends}
        for turn in range(options.rounds + 1):
            for name in options.backends:
                with ops.use_backend("paged_attention", name):
                    if turn == 0:
                        given.run()  # loads and compiles
                    elif options.sustained:
                        calls = int(1 / seconds(given.run, 4)) + 1
                        times[name].append(seconds(given.run, calls))
                    else:
                        times[name].append(burst(given.run))
        shown = ", ".join(
            f"{name} {(t := statistics.median(each)) * 1e3:.3f} ms {given.operations / t / 1e12:.0f} TFLOP/s"
            for name, each in times.items()
        )
        print(
            f"{options.heads[0]}/{options.heads[1]} heads of {options.head_size}, {rows}: {shown}", flush=True
        )


if __name__ == "__main__":
    main()
