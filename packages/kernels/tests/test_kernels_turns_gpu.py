"""Products keep their bits while other processes take turns on the GPU.

The GPU stops a process in the middle of its kernels then. Sums that lay over barriers in shared memory were
wrong in a fourth of such runs, and never alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from llm_kernels import ops
from llm_kernels.fp8_format import E4M3

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
NEIGHBOURS, ROUNDS = 4, 300
STREAM_PLANS = [(0, 0, 0, 0, 0), (1, 8, 1, 0, 0), (2, 8, 1, 0, 0), (4, 8, 1, 0, 0), (1, 4, 1, 0, 0)]
PANEL_PLANS = [(2, 8, 64, 1), (2, 4, 192, 1), (3, 8, 192, 1), (3, 4, 128, 1)]


@pytest.fixture(scope="module", autouse=True)
def _neighbours():
    command = [sys.executable, str(Path(__file__).with_name("busy_neighbour.py"))]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(NEIGHBOURS)]
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    yield
    for process in processes:
        process.communicate()


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def check(out, run):
    """The sums of all rounds have the bits that most of the first three have."""
    found = []
    for _ in range(ROUNDS):
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        found.append(out.clone())
    first = max(found[:3], key=lambda one: sum(torch.equal(one, other) for other in found[:3]))
    wrong = [one for one in found if not torch.equal(one, first)]
    assert not wrong, f"{len(wrong)} of {ROUNDS}, first in {(wrong[0] != first).nonzero()[:8].tolist()}"


@pytest.mark.parametrize("plan", STREAM_PLANS)
def test_streamed_products(plan):
    from llm_kernels.cuda.linear import streamed

    tokens, outputs, inputs = 64, 1024, 1024
    x, weight = randn(tokens, inputs, seed=1).bfloat16(), randn(outputs, inputs, seed=2).bfloat16()
    out = torch.empty(tokens, outputs, dtype=torch.bfloat16, device="cuda")
    check(out, lambda: streamed(out, x, weight, None, None, 0, plan))


@pytest.mark.parametrize("plan", STREAM_PLANS)
def test_streamed_products_of_what_was_just_quantized(plan):
    from llm_kernels.cuda.linear import streamed

    tokens, outputs, inputs = 64, 1024, 1024
    x, weight = randn(tokens, inputs, seed=1).bfloat16(), randn(outputs, inputs, seed=2).to(E4M3)
    scale, token_scale = randn(outputs, seed=3).abs(), torch.empty(tokens, 1, device="cuda")
    values = torch.empty(tokens, inputs, dtype=E4M3, device="cuda")
    out = torch.empty(tokens, outputs, dtype=torch.bfloat16, device="cuda")

    def run():
        ops.quantize_fp8(values, token_scale, x)
        streamed(out, values, weight, None, scale, 0, plan, token_scale)

    check(out, run)


@pytest.mark.parametrize("plan", PANEL_PLANS)
def test_panels(plan):
    from llm_kernels.cuda.fp8_panels import PanelPlan, panels

    tokens, outputs, inputs = plan[2], 1024, 1024
    x, weight = randn(tokens, inputs, seed=1).to(E4M3), randn(outputs, inputs, seed=2).to(E4M3)
    scale, token_scale = randn(outputs, seed=3).abs(), randn(tokens, 1, seed=4).abs()
    out = torch.empty(tokens, outputs, dtype=torch.bfloat16, device="cuda")
    check(out, lambda: panels(out, x, token_scale, weight, scale, None, 0, PanelPlan(*plan)))
