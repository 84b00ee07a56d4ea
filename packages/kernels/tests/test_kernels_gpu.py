"""The ops on a CUDA device, compiled, against float32 references over a broad grid.

Left out of the grid: head sizes not a multiple of 16 (no supported model has one), and block sizes above 32
(the kernels divide by the block size and do not depend on it otherwise). Of dtypes, head sizes, ratios of
heads and block sizes every pair of values is tried, not every four: each cell compiles kernels of its own.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from llm_kernels import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MIXED = [(1, 1), (1, 17), (1, 500), (1, 0), (5, 5), (64, 300), (130, 130), (17, 1000)]
HEADS = {1: (4, 4), 3: (9, 3), 4: (8, 2), 8: (8, 1)}
HEAD_SIZES = [64, 80, 96, 128, 256]
PAIRS = [
    (dtype, head_size, list(HEADS)[(i + j + 2 * k) % 4], (16, 32)[(j + k) % 2])
    for i, dtype in enumerate(DTYPES)
    for j, head_size in enumerate(HEAD_SIZES)
    for k in range(2)
]


@pytest.fixture(autouse=True)
def _triton_attention():
    """The CUDA back end has tests of its own."""
    with ops.use_backend("paged_attention", "triton"):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_is_chosen(dtype):
    for op in (
        "write_kv",
        "rms_norm",
        "fused_add_rms_norm",
        "rotary_embedding",
        "gated_activation",
    ):
        assert ops.selected(op, "cuda", dtype) == "triton"


def test_the_grid_holds_every_pair():
    values = [DTYPES, HEAD_SIZES, list(HEADS), [16, 32]]
    for a, b in itertools.combinations(range(4), 2):
        assert {(cell[a], cell[b]) for cell in PAIRS} == set(itertools.product(values[a], values[b]))


@pytest.mark.parametrize(("dtype", "head_size", "ratio", "block_size"), PAIRS, ids=str)
def test_attention_mixed(make_attention_case, relative_error, dtype, head_size, ratio, block_size):
    num_heads, num_kv_heads = HEADS[ratio]
    case = make_attention_case(
        MIXED,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
        device="cuda",
    )
    assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "rows",
    [
        [(1, 8192)],
        [(1, 8000), (1, 3), (1, 4097)],
        [(1, 1 + 37 * i) for i in range(200)],
        [(2000, 8192)],
        [(4096, 4096)],
    ],
    ids=["one", "uneven", "many", "chunk", "prompt"],
)
def test_attention_long(make_attention_case, relative_error, dtype, rows):
    case = make_attention_case(rows, num_heads=8, num_kv_heads=2, head_size=128, dtype=dtype, device="cuda")
    assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "limits",
    [{"sliding_window": 1}, {"sliding_window": 65}, {"sliding_window": 4096}, {"soft_cap": 1.0}],
    ids=str,
)
def test_attention_limits(make_attention_case, relative_error, dtype, limits):
    case = make_attention_case([(1, 5000), *MIXED], dtype=dtype, device="cuda")
    assert relative_error(case.run(**limits), case.expected(**limits)) < BOUND[dtype]


def test_attention_in_a_graph_follows_the_lengths(make_attention_case, relative_error):
    case = make_attention_case([(1, 3000), (1, 2000), (1, 100)], dtype=torch.bfloat16, device="cuda")
    out = torch.zeros_like(case.query)

    def call():
        ops.paged_attention(
            out, case.query, case.key_cache, case.value_cache, case.metadata, scale=case.scale
        )

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for lengths in ([1500, 7, 100], [1, 2000, 0]):
        case.metadata.context_lens.copy_(torch.tensor(lengths))
        case.rows[:] = [(1, length) for length in lengths]
        graph.replay()
        torch.cuda.synchronize()
        assert relative_error(out, case.expected()) < 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_kv(dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    fused = torch.randn(1000, 12, 128, generator=generator, device="cuda").to(dtype)
    slots = torch.randperm(200 * 16, generator=generator, device="cuda")[:1000]
    slots[::7] = -1
    cache = torch.randn(200, 2, 16, 3, 128, generator=generator, device="cuda").to(dtype)
    wanted = cache.clone()
    ops.write_kv(fused[:, 6:9], fused[:, 9:], cache[:, 0], cache[:, 1], slots)
    with ops.use_backend("write_kv", "torch"):
        ops.write_kv(fused[:, 6:9], fused[:, 9:], wanted[:, 0], wanted[:, 1], slots)
    assert torch.equal(cache, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (300, 4096), (70, 8, 128), (3, 16384), (5, 3, 80)], ids=str)
def test_norms(relative_error, dtype, shape):
    generator = torch.Generator("cuda").manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=generator, device="cuda").to(dtype)
    results = []
    for name in ("torch", "triton"):
        out, a, r = torch.empty_like(x), x.clone(), residual.clone()
        with ops.use_backend("rms_norm", name), ops.use_backend("fused_add_rms_norm", name):
            ops.rms_norm(out, x, weight, 1e-5)
            ops.fused_add_rms_norm(a, r, weight, 1e-5)
        results.append((out, a, r))
    for got, wanted in zip(results[1], results[0], strict=True):
        assert relative_error(got, wanted) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rot", "num_heads"), [(128, 32), (32, 9)])
def test_rope(relative_error, dtype, interleaved, rot, num_heads):
    generator = torch.Generator("cuda").manual_seed(0)
    fused = torch.randn(70, num_heads + 3, 128, generator=generator, device="cuda").to(dtype)
    positions = torch.randint(0, 500, (70,), generator=generator, device="cuda")
    table = torch.randn(500, rot, generator=generator, device="cuda")
    results = []
    for name in ("torch", "triton"):
        x = fused.clone()
        with ops.use_backend("rotary_embedding", name):
            ops.rotary_embedding(
                x[:, :num_heads], x[:, num_heads:], positions, table, interleaved=interleaved
            )
        results.append(x)
    assert relative_error(results[1], results[0]) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(relative_error, dtype, kind):
    gate_up = torch.randn(130, 2 * 1536, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(
        dtype
    )
    results = []
    for name in ("torch", "triton"):
        out = torch.empty(130, 1536, device="cuda", dtype=dtype)
        with ops.use_backend("gated_activation", name):
            ops.gated_activation(out, gate_up, kind)
        results.append(out)
    assert relative_error(results[1], results[0]) < BOUND[dtype]
