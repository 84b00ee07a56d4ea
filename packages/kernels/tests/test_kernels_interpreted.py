"""The Triton kernels in Triton's interpreter, against the references: no GPU needed, tiny shapes.

The interpreter must be chosen before triton is imported, so the tests run in a process of their own, which
`test_in_the_interpreter` starts. bfloat16 is left to the GPU: the interpreter's dot multiplies its bits.
"""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}
MIXED = [(1, 40), (1, 1), (1, 0), (5, 30), (20, 45)]


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 20


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size"), [(4, 2, 64, 16), (3, 1, 80, 32), (2, 2, 16, 8)]
)
def test_attention(
    make_attention_case, relative_error, dtype, num_heads, num_kv_heads, head_size, block_size
):
    case = make_attention_case(
        MIXED,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
    )
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@inside
def test_attention_window_and_cap(make_attention_case, relative_error):
    case = make_attention_case(MIXED)
    limits = {"sliding_window": 17, "soft_cap": 0.7}
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(**limits), case.expected(**limits)) < 1e-5


@inside
@pytest.mark.parametrize("rows", [[(1, 700)], [(1, 1024), (1, 3)], [(1, 600), (3, 520)]], ids=str)
def test_attention_splits_long_decode_rows(make_attention_case, relative_error, rows):
    from llm_kernels.triton.attention_decode import LEAST_KEYS_PER_SPLIT, num_splits

    assert num_splits(len(rows), 8) > 1
    assert rows[0][1] > LEAST_KEYS_PER_SPLIT
    case = make_attention_case(rows, num_heads=2, num_kv_heads=1)
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < 1e-5
        limits = {"sliding_window": 300}
        assert relative_error(case.run(**limits), case.expected(**limits)) < 1e-5


@inside
@pytest.mark.parametrize("limits", [{}, {"sliding_window": 40}], ids=str)
def test_attention_takes_padding_rows_under_a_loose_bound(make_attention_case, relative_error, limits):
    """As a captured decode step runs it: more splits than any row has keys for, rows without any."""
    case = make_attention_case([(1, 0), (1, 5), (1, 300), (1, 0)], num_heads=2, num_kv_heads=1)
    case.metadata.max_context_len = 4096
    with ops.use_backend("paged_attention", "triton_interpreter"):
        out = case.run(**limits)
    assert relative_error(out, case.expected(**limits)) < 1e-5
    assert not out[[0, 3]].any()


@inside
def test_attention_finds_the_row_of_each_block(make_attention_case, relative_error):
    rows = [(16, 16), (1, 5), (33, 40), (2, 2), (0, 0), (17, 17), (15, 31)]
    case = make_attention_case(rows, num_heads=4, num_kv_heads=1, head_size=16)
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < 1e-5


@inside
def test_write_kv(make_attention_case):
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(6, 10, 24, generator=generator)
    key, value = fused[:, :3], fused[:, 3:6]
    slots = torch.tensor([5, -1, 39, 0, 40, 17])  # 40 is past the end: skipped on a GPU
    caches = torch.randn(5, 2, 8, 3, 24, generator=generator)
    wanted = caches.clone()
    with ops.use_backend("write_kv", "triton_interpreter"):
        ops.write_kv(key, value, caches[:, 0], caches[:, 1], slots)
    slots[4] = -1
    with ops.use_backend("write_kv", "torch"):
        ops.write_kv(key, value, wanted[:, 0], wanted[:, 1], slots)
    assert torch.equal(caches, wanted)


@inside
@pytest.mark.parametrize("shape", [(3, 576), (5, 3, 64), (2, 20), (0, 64)], ids=str)
def test_norms(relative_error, shape):
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator) for _ in range(2))
    weight = torch.randn(shape[-1], generator=generator)
    results = []
    for name in ("torch", "triton_interpreter"):
        out, a, r = torch.empty_like(x), x.clone(), residual.clone()
        with ops.use_backend("rms_norm", name), ops.use_backend("fused_add_rms_norm", name):
            ops.rms_norm(out, x, weight, 1e-5)
            ops.fused_add_rms_norm(a, r, weight, 1e-5)
        results.append(torch.cat([out, a, r]))
    assert relative_error(results[1], results[0]) < 1e-6


@inside
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rot", [64, 24])
def test_rope(relative_error, interleaved, rot):
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(5, 12, 64, generator=generator)
    positions, table = torch.tensor([0, 3, 9, 9, 1]), torch.randn(10, rot, generator=generator)
    results = []
    for name in ("torch", "triton_interpreter"):
        x = fused.clone()
        with ops.use_backend("rotary_embedding", name):
            ops.rotary_embedding(x[:, :9], x[:, 9:], positions, table, interleaved=interleaved)
        results.append(x)
    assert relative_error(results[1], results[0]) < 1e-6


@inside
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(relative_error, kind):
    gate_up = torch.randn(3, 2 * 1500, generator=torch.Generator().manual_seed(0))
    results = []
    for name in ("torch", "triton_interpreter"):
        out = torch.empty(3, 1500)
        with ops.use_backend("gated_activation", name):
            ops.gated_activation(out, gate_up, kind)
        results.append(out)
    assert relative_error(results[1], results[0]) < 1e-6
