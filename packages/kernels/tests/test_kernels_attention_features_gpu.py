"""The features of attention on a CUDA device, compiled, against the float32 reference."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MIXED = [(1, 1), (1, 17), (1, 5000), (1, 0), (5, 5), (64, 300), (130, 130), (17, 1000)]


def _sinks():
    return torch.linspace(-2.0, 6.0, 8, device="cuda")


def _slopes():
    return 2.0 ** -torch.arange(1.0, 9.0, device="cuda")


def _both(case, **options):
    """The result of the Triton kernels, and that of the reference on the same tensors in float32."""
    out = case.run(**options)
    with ops.use_backend("paged_attention", "torch"):
        return out, case.run(**options)


@pytest.fixture(autouse=True)
def _triton_attention():
    """The CUDA back end has tests of its own."""
    with ops.use_backend("paged_attention", "triton"):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_is_chosen(dtype):
    for op in ("latent_attention", "varlen_attention", "write_kv", "write_latent"):
        assert ops.selected(op, "cuda", dtype) == "triton"


NAMES = ["window", "chunk", "chunk and window", "sinks", "sinks and window", "alibi", "all keys"]
# Every pair of a dtype, an option and a head size.
PAIRS = [
    (dtype, (64, 128)[(i + j) % 2], name) for i, dtype in enumerate(DTYPES) for j, name in enumerate(NAMES)
]


@pytest.mark.parametrize(("dtype", "head_size", "name"), PAIRS, ids=str)
def test_each_option(make_attention_case, relative_error, dtype, head_size, name):
    options = {
        "window": {"sliding_window": 100},
        "chunk": {"chunk": 96},
        "chunk and window": {"chunk": 1024, "sliding_window": 129},
        "sinks": {"sinks": _sinks()},
        "sinks and window": {"sinks": _sinks().bfloat16(), "sliding_window": 128},
        "alibi": {"alibi_slopes": _slopes()},
        "all keys": {"causal": False},
    }[name]
    case = make_attention_case(
        MIXED, num_heads=8, num_kv_heads=2, head_size=head_size, dtype=dtype, device="cuda"
    )
    assert relative_error(*_both(case, **options)) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("head_size", "value_size"), [(80, None), (96, None), (192, None), (192, 128), (64, 128), (40, 24)]
)
def test_head_sizes(make_attention_case, relative_error, dtype, head_size, value_size):
    case = make_attention_case(
        MIXED,
        num_heads=8,
        num_kv_heads=2,
        head_size=head_size,
        value_size=value_size,
        dtype=dtype,
        device="cuda",
    )
    assert relative_error(*_both(case)) < BOUND[dtype]


def test_entries_before_the_first_key_are_not_read(make_attention_case, relative_error):
    case = make_attention_case([(1, 1200), (1, 30), (40, 1170), (240, 500)], device="cuda")
    expected = case.run(sliding_window=200)
    for row, (num_queries, context) in enumerate(case.rows):
        first = max(0, context - num_queries - 199)
        given_back = case.metadata.block_tables[row, : first // 16].clone().long()
        case.key_cache[given_back] = float("nan")
        case.value_cache[given_back] = float("nan")
    assert relative_error(case.run(sliding_window=200), expected) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_heads", [16, 40, 128])
@pytest.mark.parametrize("sizes", [(512, 64), (256, 32)], ids=str)
@pytest.mark.parametrize("rows", [MIXED, [(1, 8000)], [(1, 37 * i) for i in range(64)]], ids=["a", "b", "c"])
def test_latents(make_attention_case, relative_error, dtype, num_heads, sizes, rows):
    case = make_attention_case(
        rows, num_heads=num_heads, num_kv_heads=1, head_size=sum(sizes), dtype=dtype, device="cuda"
    )
    results = []
    for name in ("triton", "torch"):
        out = torch.full((*case.query.shape[:2], sizes[0]), float("nan"), dtype=dtype, device="cuda")
        with ops.use_backend("latent_attention", name):
            ops.latent_attention(
                out, case.query, case.key_cache[:, :, 0], case.metadata, scale=0.05, value_size=sizes[0]
            )
        results.append(out)
    assert relative_error(*results) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["plain", "window", "alibi", "cap"])
def test_packed_rows(relative_error, dtype, causal, name):
    options = {
        "plain": {},
        "window": {"sliding_window": 65},
        "alibi": {"alibi_slopes": _slopes()},
        "cap": {"soft_cap": 1.0},
    }[name]
    generator = torch.Generator("cuda").manual_seed(0)
    lengths = [5, 1, 700, 0, 512, 33]
    fused = torch.randn(sum(lengths), 24, 64, generator=generator, device="cuda").to(dtype)
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    results = []
    for backend in ("triton", "torch"):
        out = torch.empty(sum(lengths), 8, 64, dtype=dtype, device="cuda")
        query, key, value = fused.split(8, dim=1)
        with ops.use_backend("varlen_attention", backend):
            ops.varlen_attention(
                out, query, key, value, cu, cu, 700, 700, scale=0.125, causal=causal, **options
            )
        results.append(out)
    assert relative_error(*results) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes_of_other_sizes(dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    key = torch.randn(100, 3, 192, generator=generator, device="cuda").to(dtype)
    value = torch.randn(100, 3, 128, generator=generator, device="cuda").to(dtype)
    slots = torch.randperm(20 * 16, generator=generator, device="cuda")[:100]
    slots[::7] = -1
    written = []
    for name in ("triton", "torch"):
        caches = [torch.zeros(20, 18, 3, n, dtype=dtype, device="cuda")[:, :16] for n in (192, 128)]
        latents = torch.zeros(20, 18, 192, dtype=dtype, device="cuda")[:, :16]
        with ops.use_backend("write_kv", name), ops.use_backend("write_latent", name):
            ops.write_kv(key, value, *caches, slots)
            ops.write_latent(key[:, 1], latents, slots)
        written.append([*caches, latents])
    assert all(torch.equal(a, b) for a, b in zip(*written, strict=True))
