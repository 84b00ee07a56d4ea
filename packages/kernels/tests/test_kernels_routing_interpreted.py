"""The Triton routing kernel in Triton's interpreter, against the reference; in a process of its own."""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
GROUPED = {"scoring": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() == 12


def _logits(num_experts, dtype=torch.float32):
    """Far enough apart that the last bit of a score decides nothing."""
    generator = torch.Generator().manual_seed(num_experts)
    order = torch.rand(20, num_experts, generator=generator).argsort(dim=-1)
    return (order * (8.0 / num_experts) - 4.0).to(dtype)


@inside
@pytest.mark.parametrize(
    ("num_experts", "has_bias", "options"),
    [
        (8, False, {"top_k": 2, "renormalize": True}),
        (60, False, {"top_k": 4}),
        (60, True, {"top_k": 4, "scale": 6.0}),
        (128, False, {"top_k": 8, "scoring": "softmax_after"}),
        (16, False, {"top_k": 3, "scoring": "sigmoid_after", "renormalize": True}),
        (16, False, {"top_k": 1, "scoring": "sigmoid_after"}),
        (40, True, {"top_k": 6} | GROUPED),
        (40, False, {"top_k": 6, "group_score": "max"} | GROUPED | {"scoring": "softmax"}),
        (32, True, {"top_k": 2, "scoring": "sqrtsoftplus", "renormalize": True, "renormalize_eps": 0.1}),
    ],
    ids=str,
)
def test_routing(num_experts, has_bias, options):
    logits = _logits(num_experts)
    bias = torch.rand(num_experts, generator=torch.Generator().manual_seed(0)) if has_bias else None
    weights, ids = ops.route_experts(logits, bias=bias, **options)
    with ops.use_backend("route_experts", "triton_interpreter"):
        got_weights, got_ids = ops.route_experts(logits, bias=bias, **options)
    assert torch.equal(got_ids, ids)
    torch.testing.assert_close(got_weights, weights, rtol=2e-6, atol=1e-8)


@inside
def test_among_equals_the_lowest_wins_and_nan_loses():
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, float("nan"), 1.0]])
    with ops.use_backend("route_experts", "triton_interpreter"):
        _, ids = ops.route_experts(logits, top_k=4, scoring="sigmoid")
    assert ids.tolist() == [[1, 2, 0, 3]]


@inside
def test_strided_logits_and_no_tokens():
    wide = torch.cat([_logits(16), _logits(16)], dim=1).half()
    with ops.use_backend("route_experts", "triton_interpreter"):
        weights, ids = ops.route_experts(wide[:, :16], top_k=2)
        assert ops.route_experts(wide[:0], top_k=2)[0].shape == (0, 2)
    expected_weights, expected_ids = ops.route_experts(wide[:, :16], top_k=2)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights)


@inside
def test_the_sparse_mixer_is_left_to_torch():
    with ops.use_backend("route_experts", "triton_interpreter"), pytest.raises(BackendUnavailable):
        ops.route_experts(_logits(16), top_k=2, scoring="sparsemixer")
