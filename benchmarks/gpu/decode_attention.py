"""Times decode attention on a GPU as graph replays, against the bytes of keys and values.

python3 benchmarks/gpu/decode_attention.py --heads 32 --back-ends cuda triton
python3 benchmarks/gpu/decode_attention.py --cache fp8 --problems 256x540 64x512
python3 benchmarks/gpu/decode_attention.py --problems 256x100-2048 --shared
python3 benchmarks/gpu/decode_attention.py --problems --shared 128x2048+100
"""

from __future__ import annotations

import argparse
import random
import statistics

import torch
from llm_kernels import ops

READ_TB_S = 4.27
BLOCK_SIZE = 16
# Of the cache. The rows of calls after one another lie elsewhere: none finds its keys in the L2 cache.
NUM_BLOCKS = 131_072
CALLS, ROUNDS = 24, 5


class Caches:
    """Random keys and values [N, 16, K, D], and calls over scattered blocks of them."""

    def __init__(self, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        shape = (NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_size)
        self.key, self.value = (
            torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_().to(dtype) for _ in range(2)
        )
        self._order = torch.randperm(NUM_BLOCKS, device="cuda").int()
        self._next = 0

    def num_bytes(self, tokens: int) -> int:
        """Of the keys and values of so many tokens."""
        return 2 * tokens * self.key[0, 0].numel() * self.key.element_size()

    def rows(self, lengths: list[int], shared: int = 0) -> ops.AttentionMetadata:
        """Rows of these lengths on blocks not taken lately; they share the blocks of the first tokens."""
        num_rows, context = len(lengths), max(lengths)
        width = -(-context // BLOCK_SIZE)
        at = (torch.arange(num_rows * width, device="cuda") + self._next) % NUM_BLOCKS
        self._next += num_rows * width
        tables = self._order[at].view(num_rows, width).contiguous()
        tables[1:, : shared // BLOCK_SIZE] = tables[0, : shared // BLOCK_SIZE]
        none = torch.empty(0, dtype=torch.int64, device="cuda")
        return ops.AttentionMetadata(
            cu_query_lens=torch.arange(num_rows + 1, dtype=torch.int32, device="cuda"),
            context_lens=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
            block_tables=tables,
            slot_mapping=none,
            positions=none,
            num_decodes=num_rows,
            max_query_len=1,
            max_context_len=context,
        )


def lengths_of(problem: str) -> list[int]:
    """The rows' lengths of "rows x tokens", or of "rows x least-most": prompts and answers as in W1."""
    rows, tokens = problem.split("x")
    least, _, most = tokens.partition("-")
    if not most:
        return [int(least)] * int(rows)
    draw, half = random.Random(0), int(most) // 2
    return [draw.randint(int(least), half) + draw.randint(0, half) for _ in range(int(rows))]


def one_group(num_rows: int, shared: int) -> ops.SharedPrefix:
    """All rows in one group of four possible ones."""
    return ops.SharedPrefix(
        prefix_lens=torch.full((num_rows,), shared, dtype=torch.int32, device="cuda"),
        member_rows=torch.arange(num_rows, dtype=torch.int32, device="cuda"),
        cu_members=torch.tensor([0, *[num_rows] * 4], dtype=torch.int32, device="cuda"),
        group_lens=torch.tensor([shared, 0, 0, 0], dtype=torch.int32, device="cuda"),
    )


def microseconds(caches: Caches, heads: int, calls: list[ops.AttentionMetadata]) -> float:
    """Median time of a call, in a graph of CALLS or more over the given ones in turn."""
    num_rows, head_size = calls[0].num_decodes, caches.key.shape[3]
    query = torch.randn(num_rows, heads, head_size, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(query)
    count = -(-CALLS // len(calls)) * len(calls)

    def run(metadata: ops.AttentionMetadata) -> None:
        ops.paged_attention(out, query, caches.key, caches.value, metadata, scale=head_size**-0.5)

    run(calls[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            run(calls[index % len(calls)])
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / count)
    return statistics.median(times)


def main() -> None:
    """Prints a line a problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=32, help="query heads")
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--cache", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--back-ends", nargs="+", default=["cuda", "triton"])
    problems = ["1x512", "1x4096", "1x32768", "4x4096", "4x32768", "16x4096", "64x512", "256x540"]
    problems += ["64x100-2048", "128x100-2048", "256x100-2048"]
    parser.add_argument("--problems", nargs="*", default=problems, help="rows x tokens, or x least-most")
    parser.add_argument("--shared", nargs="*", default=["128x2048+100"], help="rows x shared + own tokens")
    options = parser.parse_args()
    dtype = torch.float8_e4m3fn if options.cache == "fp8" else torch.bfloat16
    caches = Caches(options.kv_heads, options.head_size, dtype)
    for back_end in options.back_ends:
        with ops.use_backend("paged_attention", back_end):
            for problem in options.problems:
                lengths = lengths_of(problem)
                read = caches.num_bytes(sum(lengths))
                calls = [caches.rows(lengths) for _ in range(max(2, min(40, 600_000_000 // read)))]
                us = microseconds(caches, options.heads, calls)
                share = read / us / READ_TB_S / 1e4
                print(f"{back_end:>7} {problem:>14}: {us:8.1f} us, {share:4.0f} % of {READ_TB_S} TB/s")
            for problem in options.shared:
                rows, shared, own = (int(number) for number in problem.replace("+", "x").split("x"))
                calls = [caches.rows([shared + own] * rows, shared) for _ in range(2)]
                alone = microseconds(caches, options.heads, calls)
                for metadata in calls:
                    metadata.shared_prefix = one_group(rows, shared)
                us = microseconds(caches, options.heads, calls)
                print(f"{back_end:>7} {problem:>14}: {us:8.1f} us, {alone:.1f} us where each reads all")


if __name__ == "__main__":
    main()
