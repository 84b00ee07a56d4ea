"""Times causal prefill attention over a paged cache, back ends in turns, against the operations it needs.

python3 benchmarks/gpu/prefill_attention.py                       # head size 128, 32/8 heads
python3 benchmarks/gpu/prefill_attention.py --head-size 64 --rows 1x8192:8192 128x64:2112
python3 benchmarks/gpu/prefill_attention.py --cache e4m3          # an FP8 cache

Calls are replayed from a CUDA graph, as the engine's steps are. Bursts are short, with pauses between them:
under a load of a second the chip lowers its clock, and whoever is measured later looks slower. `--sustained`
times a second without pauses.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from llm_kernels import ops

MIXED = "+".join(f"1x{tokens}:{tokens}" for tokens in (100, 232, 364, 496, 628, 760, 892, 1024))
ROWS = ("1x8192:8192", "2x4096:4096", "8x1024:1024", "32x256:256", "2x2048:8192", "128x64:2112", MIXED)
CALLS = 8
CACHES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


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


def problem(
    rows: str, heads: tuple[int, int], head_size: int, block_size: int, cache_dtype: torch.dtype
) -> Problem:
    """`rows`: COUNTxQUERIES:CONTEXT, joined by "+". Blocks are shuffled, values are normal."""
    pairs = []
    for part in rows.split("+"):
        count, queries, context = (int(x) for x in part.replace("x", ":").split(":"))
        pairs += [(queries, context)] * count
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    longest, num_tokens = max(context for _, context in pairs), sum(queries for queries, _ in pairs)
    shape = (len(pairs), -(-longest // block_size))
    num_blocks = shape[0] * shape[1]
    tables = torch.randperm(num_blocks, generator=generator, device="cuda").int().view(shape)
    query = randn(num_tokens, heads[0], head_size)
    empty = torch.empty(0, dtype=torch.int64, device="cuda")
    seen = sum(queries * context - queries * (queries - 1) // 2 for queries, context in pairs)
    return Problem(
        out=torch.empty_like(query),
        query=query,
        key_cache=randn(num_blocks, block_size, heads[1], head_size).to(cache_dtype),
        value_cache=randn(num_blocks, block_size, heads[1], head_size).to(cache_dtype),
        metadata=ops.AttentionMetadata(
            cu_query_lens=torch.tensor([0, *(queries for queries, _ in pairs)], device="cuda")
            .cumsum(0)
            .int(),
            context_lens=torch.tensor([context for _, context in pairs], dtype=torch.int32, device="cuda"),
            block_tables=tables,
            slot_mapping=empty,
            positions=empty,
            num_decodes=0,
            max_query_len=max(queries for queries, _ in pairs),
            max_context_len=longest,
        ),
        operations=4 * head_size * heads[0] * seen,
    )


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """`CALLS` calls as one replay."""
    run()  # loads and compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return graph.replay


def seconds(replay: Callable[[], None], replays: int) -> float:
    """Of one call, in so many replays of `CALLS` calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(replays):
        replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / replays / CALLS / 1e3


def burst(replay: Callable[[], None]) -> float:
    """Seconds of a call on a rested chip."""
    time.sleep(0.05)
    return seconds(replay, 1)


def main() -> None:
    """Prints a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=ROWS, help="COUNTxQUERIES:CONTEXT ...")
    parser.add_argument("--heads", type=int, nargs=2, default=(32, 8), help="query heads, KV heads")
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--cache", choices=CACHES, default="bf16", help="number format of the caches")
    parser.add_argument("--backends", nargs="+", default=("cuda", "triton"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sustained", action="store_true")
    options = parser.parse_args()
    for rows in options.rows:
        given = problem(
            rows, tuple(options.heads), options.head_size, options.block_size, CACHES[options.cache]
        )
        replays = {}
        for name in options.backends:
            with ops.use_backend("paged_attention", name):
                replays[name] = captured(given.run)
        times: dict[str, list[float]] = {name: [] for name in options.backends}
        for _ in range(options.rounds):
            for name, replay in replays.items():
                if options.sustained:
                    count = int(1 / seconds(replay, 1) / CALLS) + 1
                    times[name].append(seconds(replay, count))
                else:
                    times[name].append(burst(replay))
        shown = ", ".join(
            f"{name} {(t := statistics.median(each)) * 1e3:.3f} ms {given.operations / t / 1e12:.0f} TFLOP/s"
            for name, each in times.items()
        )
        label = "mixed" if rows == MIXED else rows
        heads = f"{options.heads[0]}/{options.heads[1]} heads of {options.head_size}"
        print(f"{heads}, {options.cache}, {label}: {shown}", flush=True)


if __name__ == "__main__":
    main()
