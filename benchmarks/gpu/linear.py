"""Times matrix products, ours against torch's (cuBLAS): microseconds, share of the read bandwidth, TFLOP/s.

Each product is one of a chain of calls in a CUDA graph, over enough copies of the weights that none is in
the L2 cache. `--sweep` tries the plans of the streaming kernels and, in bf16, the tiles of the others that a
rough model of the GPU puts first, and names the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.cuda.gemm import tiled
from llm_kernels.cuda.gemm_tiles import candidates, estimate_us
from llm_kernels.cuda.linear import BY_SHAPE, Plan, streamed

READ_BYTES_PER_S = 4.27e12
L2_BYTES = 60e6
SWEPT_TILES = 24
SHAPES = {
    "0.6b qkv": (4096, 1024),
    "0.6b o": (1024, 2048),
    "0.6b gate_up": (6144, 1024),
    "0.6b down": (1024, 3072),
    "0.6b head": (151936, 1024),
    "8b qkv": (6144, 4096),
    "8b o": (4096, 4096),
    "8b gate_up": (24576, 4096),
    "8b down": (4096, 12288),
    "8b head": (151936, 4096),
    "30b qkv": (5120, 2048),
    "30b o": (2048, 4096),
    "30b head": (151936, 2048),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One product: what, how, microseconds, its share of the read bandwidth by its weights alone, rate."""

    shape: str
    tokens: int
    how: str
    us: float
    share: float
    tflops: float


def time_us(call: Callable[[int], object], calls: int, rounds: int = 5) -> float:
    """Median microseconds of a call, from replays of a graph of `calls` of them; `call` gets their number."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(calls):
            call(index)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return sorted(times)[rounds // 2]


def plans(out_size: int, in_size: int, columns: int, tokens: int, gated: bool) -> Iterator[Plan]:
    """The plans worth a try: enough blocks, and not several rounds of blocks for the sake of a split."""
    for tiles in (1, 2, 4):
        if (gated and tiles == 1) or (tiles == 4 and tokens > 64):
            continue
        blocks = -(-out_size // (64 * tiles))
        for split in (1, 2, 4, 8):
            if split > 1 and (in_size // columns < 2 * split or blocks * split > 660):
                continue
            if blocks * split < 90 and split < 8:
                continue
            for resident in (1, 2, 3):
                yield tiles, split, resident, 0, 0
    if tokens <= 8 and columns == 128:
        for resident, rows, unroll in itertools.product((1, 2, 3, 4), (8, 16), (4, 8)):
            if not (gated and rows == 8):
                yield 0, 0, resident, rows, unroll
    if tokens == 1 and columns == 64:
        for rows, unroll in ((1, 8), (1, 16), (2, 4), (2, 8)):
            if not (gated and rows == 1):
                yield 0, 0, 0, rows, unroll


def copies_of(out_size: int, in_size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Random weights, as many as are three times the L2 cache, two at least."""
    bytes_each = out_size * in_size * dtype.itemsize
    count = max(2, -(-int(3 * L2_BYTES) // bytes_each))
    scale = in_size**-0.5
    made = []
    for _ in range(count):
        weight = torch.empty(out_size, in_size, dtype=torch.bfloat16, device="cuda").normal_(std=scale)
        made.append(weight if dtype == torch.bfloat16 else (weight / scale * 64).to(dtype))
    return made


def measure(name: str, tokens: int, weights: list[torch.Tensor], options: argparse.Namespace) -> list[Timing]:
    """Torch's time, ours with the built-in plan, and with `--sweep` the best other plans."""
    out_size, in_size = weights[0].shape
    weight_bytes = out_size * in_size * weights[0].dtype.itemsize
    x = torch.randn(tokens, in_size, device="cuda", dtype=torch.bfloat16)
    calls = max(len(weights), min(48, int(4e9 / weight_bytes), int(3e12 / (tokens * out_size * in_size))))
    calls -= calls % len(weights)

    def timing(how: str, call: Callable[[int], object]) -> Timing:
        us = time_us(call, calls)
        share = weight_bytes / (us * 1e-6) / READ_BYTES_PER_S
        tflops = 2 * tokens * out_size * in_size / us / 1e6
        return Timing(shape=name, tokens=tokens, how=how, us=us, share=share, tflops=tflops)

    found: list[Timing] = []
    is_float8 = weights[0].dtype != torch.bfloat16
    if not is_float8:
        found.append(timing("torch", lambda i: F.linear(x, weights[i % len(weights)])))
        if options.gated and "gate_up" in name:
            found.append(timing("torch", lambda i: _torch_gated(x, weights[i % len(weights)])))
    gate = 1 if options.gated and "gate_up" in name else 0
    if not is_float8:
        product = ops.gated_linear if gate else ops.linear
        found.append(timing("ours", lambda i: product(x, weights[i % len(weights)])))
        if options.sweep:
            found += _sweep_tiles(timing, x, weights, gate, options.best)
    if tokens > 128:
        return found
    scale = torch.rand(out_size, device="cuda") if is_float8 else None
    if options.block_scale and is_float8:
        scale = torch.rand(-(-out_size // 128), -(-in_size // 128), device="cuda")
    token_scale = None
    if options.quantized:
        x, token_scale = x.to(weights[0].dtype), torch.rand(tokens, 1, device="cuda")
    out = torch.empty(tokens, out_size // (2 if gate else 1), dtype=torch.bfloat16, device="cuda")

    def ours(plan: Plan) -> Timing:
        def call(i: int) -> None:
            streamed(out, x, weights[i % len(weights)], None, scale, gate, plan, token_scale)

        return timing("streamed" if plan == BY_SHAPE else "streamed {}/{}/{} {}x{}".format(*plan), call)

    found.append(ours(BY_SHAPE))
    if options.sweep:
        columns = 128 if is_float8 else 64
        swept = [
            ours(plan)
            for plan in plans(out_size, in_size, columns, tokens, bool(gate))
            if _fits(plan, tokens, scale, token_scale)
        ]
        found += sorted(swept, key=lambda t: t.us)[: options.best]
    return found


def _sweep_tiles(
    timing: Callable[[str, Callable[[int], object]], Timing],
    x: torch.Tensor,
    weights: list[torch.Tensor],
    gate: int,
    best: int,
) -> list[Timing]:
    """The best of the tiles that the model puts first."""
    out_size, in_size = weights[0].shape
    out = torch.empty(x.shape[0], out_size // (2 if gate else 1), dtype=x.dtype, device="cuda")
    shape = (x.shape[0], out_size, in_size)
    likely = sorted(candidates(x.shape[0], in_size, bool(gate)), key=lambda t: estimate_us(t, *shape))
    swept = [
        timing(
            f"tiles {t.groups}x{t.blocks} {t.tokens} {t.split}/{t.pair}",
            lambda i, t=t: tiled(out, x, weights[i % len(weights)], None, gate, t),  # type: ignore[misc]
        )
        for t in likely[:SWEPT_TILES]
    ]
    return sorted(swept, key=lambda t: t.us)[:best]


def _torch_gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    return F.silu(gate) * up


def _fits(plan: Plan, tokens: int, scale: torch.Tensor | None, token_scale: torch.Tensor | None) -> bool:
    """Whether there is such a kernel for so many tokens."""
    if scale is None:
        return True
    if token_scale is not None:
        return plan[3] == 0
    return plan[0] <= (2 if scale.ndim == 1 or tokens <= 64 else 1)


def main(arguments: list[str] | None = None) -> None:
    """Prints one line a shape and number of tokens; `arguments` stand for those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", default="1,8,16,32,64,128,256")
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--gated", action="store_true", help="gate_up with its activation")
    parser.add_argument("--block-scale", action="store_true", help="fp8 with a scale a 128 x 128 block")
    parser.add_argument("--quantized", action="store_true", help="fp8 activations too")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--best", type=int, default=2, help="how many plans of a sweep to name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float8_e4m3fn
    found: list[Timing] = []
    for name in options.shapes.split(","):
        weights = copies_of(*SHAPES[name], dtype)
        for tokens in map(int, options.tokens.split(",")):
            row = measure(name, tokens, weights, options)
            found += row
            print(
                f"{name:13} T={tokens:<4}"
                + "  ".join(f"{t.how} {t.us:.1f} us {t.share:.0%} {t.tflops:.0f} TFLOP/s" for t in row),
                flush=True,
            )
        del weights
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(t) for t in found], indent=1))


if __name__ == "__main__":
    main()
