"""Times expert routing and the grouped products on a GPU, against the bytes and operations they need.

python3 benchmarks/gpu/experts.py --sizes qwen3-30b-a3b --tokens 1 64 8192
python3 benchmarks/gpu/experts.py --tokens 64 --profile     # shares of the kernels
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from llm_kernels import ops
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.triton.experts_sort import sort_by_expert
from llm_kernels.triton.experts_tiles import expert_tiles

# Experts, chosen, hidden, inner.
SIZES = {"qwen3-30b-a3b": (128, 8, 2048, 768), "deepseek-v3": (256, 8, 7168, 2048)}
READ_TB_S, BF16_TFLOP_S = 4.27, 803.0
# Inputs of a graph differ, so that few tokens do not find their weights in the cache.
CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One set of weights, and CALLS sets of tokens: [C, T, E], [C, T, N], [C, T, K], [C, T, K]."""

    mlp: ExpertMlp
    inputs: torch.Tensor
    logits: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor

    def bytes_and_operations(self, call: int) -> tuple[int, int]:
        """Of both products of one call: weights of the experts that are hit, and all multiplications."""
        ids = self.ids[call]
        matrix = self.mlp.up[0].numel() + self.mlp.down[0].numel()
        return ids.unique().numel() * matrix * self.mlp.up.element_size(), 2 * ids.numel() * matrix


def quantized(weight_NOI: torch.Tensor, scales: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights, or their e4m3 values and random scales of about their size."""
    if scales == "none":
        return weight_NOI, None
    num_experts, outputs, inputs = weight_NOI.shape
    shape = (num_experts, outputs) if scales == "output" else (num_experts, outputs // 128, inputs // 128)
    scale = torch.rand(shape, device="cuda") * 0.01 + 0.005
    values = torch.empty(weight_NOI.shape, device="cuda", dtype=torch.float8_e4m3fn)
    for own, wide in zip(values, weight_NOI, strict=True):
        own.copy_(wide.float() * 100)
    return values, scale


def problem(sizes: str, num_tokens: int, scales: str = "none") -> Problem:
    """Random weights of the model's scale, and random logits."""
    num_experts, top_k, size, inner = SIZES[sizes]
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)

    up, up_scale = quantized(randn(num_experts, 2 * inner, size).mul_(size**-0.5), scales)
    down, down_scale = quantized(randn(num_experts, size, inner).mul_(inner**-0.5), scales)
    logits = randn(CALLS, num_tokens, num_experts, dtype=torch.float32)
    routed = [ops.route_experts(each, top_k=top_k, renormalize=True) for each in logits]
    mlp = ExpertMlp(
        up=up,
        down=down,
        up_bias=None,
        down_bias=None,
        activation="silu",
        gated=True,
        limit=None,
        alpha=None,
        weight_input=False,
        zero_experts=0,
        up_scale=up_scale,
        down_scale=down_scale,
    )
    return Problem(
        mlp=mlp,
        inputs=randn(CALLS, num_tokens, size),
        logits=logits,
        weights=torch.stack([weights for weights, _ in routed]),
        ids=torch.stack([ids for _, ids in routed]),
    )


def microseconds(call: Callable[[int], object], rounds: int = 5) -> float:
    """Median time of call(i), i < CALLS in turns, out of a CUDA graph."""
    for i in range(CALLS):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(i) for i in range(CALLS)]
    graph.replay()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    del kept
    return sorted(times)[len(times) // 2]


def mixture(given: Problem, call: int, out: torch.Tensor) -> None:
    """`ops.moe` of one set of tokens."""
    mlp = given.mlp
    ops.moe(
        out,
        given.inputs[call],
        given.weights[call],
        given.ids[call],
        mlp.up,
        mlp.down,
        up_scale=mlp.up_scale,
        down_scale=mlp.down_scale,
    )


def time_whole(given: Problem, num_tokens: int) -> None:
    """Routing, sort, and the mixture, with the tiles in use."""
    num_experts, top_k = given.mlp.down.shape[0], given.ids.shape[2]
    out = torch.empty_like(given.inputs[0])

    def route(i: int) -> object:
        return ops.route_experts(given.logits[i], top_k=top_k, renormalize=True)

    num_bytes, operations = given.bytes_and_operations(0)
    floor = max(num_bytes / READ_TB_S / 1e6, operations / BF16_TFLOP_S / 1e6)
    block_m = expert_tiles(torch.bfloat16, num_tokens * top_k, num_experts).block_m
    took = microseconds(lambda i: mixture(given, i, out))
    print(
        f"T {num_tokens:6d}: route {microseconds(route):7.1f} us, sort "
        f"{microseconds(lambda i: sort_by_expert(given.ids[i].view(-1), num_experts, block_m)):6.1f}, "
        f"moe {took:8.1f}, floor {floor:7.1f} ({floor / took:.0%}), {num_bytes / took / 1e6:5.2f} TB/s, "
        f"{operations / took / 1e6:4.0f} TFLOP/s",
        flush=True,
    )


def profile(given: Problem, num_tokens: int) -> None:
    """Names the kernels' shares."""
    out = torch.empty_like(given.inputs[0])

    def step(i: int) -> None:
        ops.route_experts(given.logits[i], top_k=given.ids.shape[2], renormalize=True)
        mixture(given, i, out)

    step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for i in range(CALLS):
            step(i)
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.device_time_total)
    total = sum(row.device_time_total for row in rows)
    shares = [
        f"{row.key[:28]} {row.device_time_total / CALLS:.1f} us {row.device_time_total / total:.0%}"
        for row in rows
    ]
    print(f"T {num_tokens:6d}: {'; '.join(shares[:7])}", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="qwen3-30b-a3b", choices=SIZES)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256, 2048, 8192])
    parser.add_argument("--scales", default="none", choices=("none", "output", "block"))
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    for num_tokens in args.tokens:
        given = problem(args.sizes, num_tokens, args.scales)
        if args.profile:
            profile(given, num_tokens)
        else:
            time_whole(given, num_tokens)


if __name__ == "__main__":
    main()
