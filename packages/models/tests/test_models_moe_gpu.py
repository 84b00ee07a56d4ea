"""The shared MLP on a stream beside the experts, on a CUDA device: equal to one after the other."""

import pytest
import torch
from llm_distributed import DeviceMesh
from llm_models.blocks import moe
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.parameters import Shard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WIDTH = 1024


def _built(shared_gate=False):
    """A mixture with a shared MLP, and the step it is given."""
    spec = MoE(
        num_experts=16,
        expert_size=512,
        router=Router(top_k=4, renormalize=True),
        shared=MLP(intermediate_size=512, name="shared"),
        shared_gate=shared_gate,
    )
    generator = torch.Generator("cuda").manual_seed(0)
    weights = {
        parameter.name: torch.randn(parameter.shape, generator=generator, device="cuda").mul_(0.03).bfloat16()
        for parameter in spec.parameters(WIDTH, Shard())
    }
    device = torch.device("cuda")
    setup = Setup(device=device, dtype=torch.bfloat16, shard=Shard(), mesh=DeviceMesh())
    nothing = torch.empty(0, device=device)
    step = Step(input_ids=nothing, positions=nothing, metadata=(), caches=(), packed=None, embeddings=nothing)
    return spec.build(Weights(weights), setup), step


def _inputs(num_tokens, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(num_tokens, WIDTH, generator=generator, device="cuda").bfloat16()


@pytest.mark.parametrize("shared_gate", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 16, 256, 300])
def test_beside_is_bitwise_one_after_the_other(monkeypatch, num_tokens, shared_gate):
    running, step = _built(shared_gate)
    x_TE = _inputs(num_tokens, 1)
    for _ in range(20):
        beside = running.run(x_TE, step)
    monkeypatch.setattr(moe, "MOST_ASIDE", 0)
    assert torch.equal(running.run(x_TE, step), beside)


def test_a_graph_holds_both_streams(monkeypatch):
    running, step = _built()
    x_TE = _inputs(16, 1)
    running.run(x_TE, step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TE = x_TE
        for _ in range(8):
            out_TE = running.run(out_TE, step)
    monkeypatch.setattr(moe, "MOST_ASIDE", 0)
    for seed in range(5):
        x_TE.copy_(_inputs(16, seed))
        graph.replay()
        expected = x_TE
        for _ in range(8):
            expected = running.run(expected, step)
        assert torch.equal(out_TE, expected)
