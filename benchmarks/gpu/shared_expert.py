"""Times a mixture with a shared MLP beside the experts, and after them: 8 layers a CUDA graph.

python3 benchmarks/gpu/shared_expert.py
"""

from __future__ import annotations

import torch
from llm_distributed import DeviceMesh
from llm_models.blocks import moe
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router, RunningMoE
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.parameters import Shard

LAYERS = 8
# Experts, chosen, hidden, inner, inner of the shared MLP: Qwen3-Next, DeepSeek V2 Lite.
SHAPES = {"qwen3-next": (512, 10, 2048, 512, 512), "deepseek-v2-lite": (64, 6, 2048, 1408, 2816)}


def layers(name: str) -> tuple[list[RunningMoE], Step]:
    """Mixtures of random weights."""
    experts, top_k, width, inner, shared = SHAPES[name]
    spec = MoE(
        num_experts=experts,
        expert_size=inner,
        router=Router(top_k=top_k, renormalize=True),
        shared=MLP(intermediate_size=shared, name="shared"),
    )
    device = torch.device("cuda")
    setup = Setup(device=device, dtype=torch.bfloat16, shard=Shard(), mesh=DeviceMesh())
    nothing = torch.empty(0, device=device)
    step = Step(input_ids=nothing, positions=nothing, metadata=(), caches=(), packed=None, embeddings=nothing)
    built = []
    for _ in range(LAYERS):
        weights = {
            parameter.name: torch.randn(parameter.shape, device=device, dtype=torch.bfloat16).mul_(0.03)
            for parameter in spec.parameters(width, Shard())
        }
        built.append(spec.build(Weights(weights), setup))
    return built, step


def microseconds(built: list[RunningMoE], step: Step, x_TE: torch.Tensor) -> float:
    """A layer's time: median of ten replays."""
    for layer in built:
        layer.run(x_TE, step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in built:
            layer.run(x_TE, step)
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(built))
    return sorted(times)[5]


def main() -> None:
    """See the module."""
    for name, (_, _, width, *_) in SHAPES.items():
        built, step = layers(name)
        for num_tokens in (1, 8, 64, 256):
            x_TE = torch.randn(num_tokens, width, device="cuda", dtype=torch.bfloat16)
            moe.MOST_ASIDE = 0
            after = microseconds(built, step, x_TE)
            moe.MOST_ASIDE = 256
            beside = microseconds(built, step, x_TE)
            print(f"{name} T {num_tokens:4d}: after {after:7.1f} us, beside {beside:7.1f} us", flush=True)


if __name__ == "__main__":
    main()
