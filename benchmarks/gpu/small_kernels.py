"""Times the small kernels of a step on a GPU: norms, rotation with cache write, activations, the draw.

    python3 benchmarks/gpu/small_kernels.py [--warm SHARD/OF] [--only norm,input,gated,draw,filter,chain]

Every figure is the median time of a call inside a CUDA graph of many calls over rotated buffers larger than
the L2 cache where the op is large. `--warm` only compiles, for a share of the variants.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from llm_kernels import ops
from llm_kernels.triton import activation, attention_input, norm
from llm_kernels.triton import sampling as draw
from torch import Tensor

READ_TB_S = 4.27
L2_BYTES = 120e6
VOCAB = 151_936
Variant = dict[tuple[Any, str], Any]
Call = Callable[[int], None]


@contextlib.contextmanager
def patched(variant: Variant) -> Iterator[None]:
    """Other tiles than the tables have."""
    with contextlib.ExitStack() as stack:
        for (module, name), value in variant.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def per_call_us(call: Call, num_calls: int, repeats: int = 7) -> float:
    """Median microseconds of a call, from replays of a graph of `num_calls` calls."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(num_calls):
            call(i)
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / num_calls)
    return statistics.median(times)


def norm_call(sets: list[tuple[Tensor, Tensor]], weight: Tensor) -> Call:
    """Add and norm."""
    return lambda i: ops.fused_add_rms_norm(*sets[i % len(sets)], weight, 1e-6)


def gated_call(sets: list[tuple[Tensor, Tensor]]) -> Call:
    """Gated silu."""
    return lambda i: ops.gated_activation(*sets[i % len(sets)], "silu")


def draw_call(sets: list[Tensor], temperature: Tensor) -> Call:
    """The draw, a stream a row."""
    rows = torch.arange(len(temperature), device="cuda")

    def call(i: int) -> None:
        ops.draw_tokens(sets[i % len(sets)], temperature, rows, rows)

    return call


def sample_call(sets: list[Tensor], batch: ops.SamplingBatch) -> Call:
    """All of `sample`."""

    def call(i: int) -> None:
        ops.sample(sets[i % len(sets)], batch)

    return call


class InputCalls:
    """What comes between projection and attention, fused and one op after the other."""

    def __init__(self, heads: int, tokens: int) -> None:
        self.tokens, self.widths = tokens, (heads * 128, 1024, 1024)
        self.num_bytes = 2 * 2 * tokens * sum(self.widths)
        self.sets = [randn(tokens, sum(self.widths)) for _ in range(copies(self.num_bytes / 2))]
        cache = randn(tokens // 16 + 8, 2, 16, 8, 128)
        self.caches = cache[:, 0], cache[:, 1]
        self.slots = torch.randperm(cache.shape[0] * 16, device="cuda")[:tokens]
        self.positions = torch.randint(0, 4096, (tokens,), device="cuda")
        self.table = torch.randn(4096, 128, device="cuda")
        self.weight = randn(128)

    def fused(self, i: int) -> None:
        """One launch."""
        given = (*self._parts(i), *self.caches, self.positions, self.slots, self.table)
        ops.rotate_write_kv(*given, query_weight=self.weight, key_weight=self.weight, eps=1e-6)

    def one_by_one(self, i: int) -> None:
        """Four launches."""
        query, key, value = self._parts(i)
        ops.rms_norm(query, query, self.weight, 1e-6)
        ops.rms_norm(key, key, self.weight, 1e-6)
        ops.rotary_embedding(query, key, self.positions, self.table)
        ops.write_kv(key, value, *self.caches, self.slots)

    def _parts(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.sets[i % len(self.sets)].split(self.widths, dim=1)
        tokens = self.tokens
        return query.view(tokens, -1, 128), key.view(tokens, 8, 128), value.view(tokens, 8, 128)


def randn(*shape: int) -> Tensor:
    """Random bfloat16."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def copies(num_bytes: float) -> int:
    """So many buffers that the L2 cache does not hold them."""
    return max(1, min(40, int(L2_BYTES // max(num_bytes, 1)) + 1))


class Table:
    """Rows of a printed table; with `warm`, each variant is run once and nothing is timed."""

    def __init__(self, warm: tuple[int, int] | None) -> None:
        self.warm, self.count, self.base = warm, 0, ""

    def row(self, name: str, variant: Variant, call: Call, num_bytes: float, num_calls: int) -> None:
        """Times a call under other tiles, or only runs it."""
        self.count += 1
        try:
            with patched(variant):
                if self.warm is not None:
                    if self.count % self.warm[1] == self.warm[0]:
                        call(0)
                        torch.cuda.synchronize()
                    return
                us = per_call_us(call, num_calls)
        except Exception as error:  # noqa: BLE001 - the other variants still count
            print(f"\n{name:58s} failed: {str(error).splitlines()[0][:80]}")
            return
        share = num_bytes / (us * 1e-6) / (READ_TB_S * 1e12)
        if variant:
            print(f" [{' '.join(name.replace(self.base, '').split())}] {us:.2f};", end="")
            return
        self.base = name
        print(f"\n{name:44s} {us:9.2f} us {100 * share:5.1f} %", end="")


def time_chain(table: Table) -> None:
    """200 norms of one row, one after the other, with and without programmatic dependent launch."""
    x, residual, weight = randn(1, 1024), randn(1, 1024), randn(1024)
    call = norm_call([(x, residual)], weight)
    for name, options in (("with", {"PDL": True, "launch_pdl": True}), ("without", {"PDL": False})):
        changed: Variant = {(norm, "launch_options"): lambda _, options=options: options}
        table.row(f"chain of 200 add+norm of 1 x 1024, {name} PDL", changed, call, 4 * 2 * 1024, 200)


def time_norms(table: Table, variants: bool) -> None:
    """Add and norm."""
    for width, rows in itertools.product((1024, 4096, 12288), (1, 64, 256, 8192)):
        num_bytes = 4 * 2 * rows * width
        sets = [(randn(rows, width), randn(rows, width)) for _ in range(copies(num_bytes / 2))]
        weight = randn(width)
        grid = [({}, "")]
        if variants and rows in (1, 256, 8192):
            for per_thread, elements in ((16, 1024), (32, 1024)):
                grid.append(
                    (
                        {
                            (norm, "_ELEMENTS_PER_THREAD"): per_thread,
                            (norm, "_ELEMENTS_PER_PROGRAM"): elements,
                        },
                        f" {per_thread}/thread {elements}/program",
                    )
                )
        for variant, label in grid:
            table.row(
                f"add+norm {rows} x {width}{label}",
                variant,
                norm_call(sets, weight),
                num_bytes,
                max(20, len(sets)),
            )


def time_inputs(table: Table, variants: bool) -> None:
    """Norms of heads, rotation and cache write, at the shapes of Qwen3-0.6B and 8B."""
    for heads, tokens in itertools.product((16, 32), (1, 64, 256, 8192)):
        calls_of = InputCalls(heads, tokens)
        num_bytes, fused = calls_of.num_bytes, calls_of.fused
        label = f"{heads}/8 heads, {tokens} tokens"
        calls = max(20, len(calls_of.sets))
        table.row(f"one by one {label}", {}, calls_of.one_by_one, num_bytes, calls)
        table.row(f"fused {label}", {}, fused, num_bytes, calls)
        if variants and heads == 16:
            for count, warps in ((1, 1), (2, 1), (4, 1), (4, 2), (8, 1), (8, 4)):
                if tokens == 1 and count > 4:
                    continue
                changed = {
                    (attention_input, "heads_per_part"): lambda *_, count=count: count,
                    (attention_input, "num_warps"): lambda *_, warps=warps: warps,
                }
                table.row(f"fused {label}, {count} heads {warps} warps", changed, fused, num_bytes, calls)
            for count in (1, 2) if tokens > 64 else ():
                changed = {(attention_input, "parts_per_program"): lambda *_, count=count: count}
                table.row(f"fused {label}, {count} parts", changed, fused, num_bytes, calls)


def time_gated(table: Table, variants: bool) -> None:
    """Gated silu."""
    for width, rows in itertools.product((3072, 12288), (1, 64, 256, 8192)):
        num_bytes = 3 * 2 * rows * width
        sets = [(randn(rows, width), randn(rows, 2 * width)) for _ in range(copies(num_bytes))]
        grid: list[tuple[Variant, str]] = [({}, "")]
        if variants:
            grid += [({(activation, "_BLOCK"): block}, f" block {block}") for block in (512, 2048, 4096)]
        for variant, label in grid:
            table.row(
                f"gated {rows} x {width}{label}",
                variant,
                gated_call(sets),
                num_bytes,
                max(20, len(sets)),
            )


def time_draws(table: Table, variants: bool) -> None:
    """The draw without filters, half of the rows greedy or none."""
    for rows in (1, 64, 256):
        num_bytes = 2 * rows * VOCAB
        sets = [randn(rows, VOCAB) * 3 for _ in range(copies(num_bytes))]
        for name, heat in (("temperature 0.6", 0.6), ("greedy", 0.0)):
            temperature = torch.full((rows,), heat, device="cuda")
            grid: list[tuple[Variant, str]] = [({}, "")]
            if variants and heat > 0:
                for tile, warps in (
                    (1024, 2),
                    (1024, 4),
                    (2048, 2),
                    (2048, 8),
                    (4096, 8),
                    (4096, 16),
                    (8192, 8),
                ):
                    changed: Variant = {(draw, "_TILE"): tile, (draw, "_WARPS"): warps}
                    grid.append((changed, f" tile {tile} {warps} warps"))
            for variant, label in grid:
                table.row(
                    f"draw {rows} rows, {name}{label}",
                    variant,
                    draw_call(sets, temperature),
                    num_bytes,
                    max(20, len(sets)),
                )


def time_filters(table: Table) -> None:
    """Whole calls of sample with filters or logprobs, over flat and over peaked logits."""
    for rows, (shape, scale) in itertools.product((1, 64, 256), (("flat", 1.0), ("peaked", 4.0))):
        num_bytes = 2 * rows * VOCAB
        sets = [randn(rows, VOCAB) * scale for _ in range(min(3, copies(num_bytes)))]
        for name, given in (
            ("top-k 50", {"top_k": 50}),
            ("top-p 0.95", {"top_p": 0.95}),
            ("top-k 50 top-p 0.95", {"top_k": 50, "top_p": 0.95}),
            ("min-p 0.05", {"min_p": 0.05}),
            ("5 logprobs", {"num_logprobs": 5}),
        ):
            batch = sampling_batch(rows, given)
            table.row(
                f"sample {rows} rows, {shape}, {name}",
                {},
                sample_call(sets, batch),
                num_bytes,
                3,
            )


def sampling_batch(rows: int, given: dict[str, Any]) -> ops.SamplingBatch:
    """All rows with the same parameters, at temperature 0.6."""

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), given.get(name, default), dtype=dtype, device="cuda")

    return ops.SamplingBatch(
        temperature=torch.full((rows,), 0.6, device="cuda"),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        seeds=torch.arange(rows, device="cuda"),
        positions=torch.arange(rows, device="cuda"),
        max_top_k=int(given.get("top_k", 0)),
        any_top_p="top_p" in given,
        any_min_p="min_p" in given,
        every_top_p_has_top_k="top_k" in given,
        filtered_rows=torch.arange(rows, device="cuda"),
        num_logprobs=given.get("num_logprobs"),
    )


def main() -> None:
    """Prints the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", help="SHARD/OF: compile that share of the variants, time nothing")
    parser.add_argument("--only", default="chain,norm,input,gated,draw,filter")
    parser.add_argument("--no-variants", action="store_true", help="only the tiles in use")
    args = parser.parse_args()
    shard = args.warm.split("/") if args.warm else None
    table = Table((int(shard[0]), int(shard[1])) if shard else None)
    torch.manual_seed(0)
    timings: dict[str, Callable[[], None]] = {
        "chain": lambda: time_chain(table),
        "norm": lambda: time_norms(table, not args.no_variants),
        "input": lambda: time_inputs(table, not args.no_variants),
        "gated": lambda: time_gated(table, not args.no_variants),
        "draw": lambda: time_draws(table, not args.no_variants),
        "filter": lambda: time_filters(table),
    }
    for name in args.only.split(","):
        start = time.perf_counter()
        timings[name]()
        torch.cuda.empty_cache()
        print(f"\n-- {name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
