"""The prefill kernel for Hopper over caches in e4m3, against the float32 reference; NaN where no key lies."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]

E4M3 = torch.float8_e4m3fn
NAN = 0x7F
# Keys, values and queries are exact; weights and output are rounded, the former to fp16.
BOUND = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
HEAD_SIZES = [64, 80, 96, 128, 192, 256]
MIXED = [
    (5, 5),
    (64, 300),
    (130, 130),
    (17, 1000),
    (2, 2),
    (0, 40),
    (300, 0),
    (700, 3000),
    (1, 77),
    (129, 129),
]


@pytest.fixture
def make_case(make_attention_case):
    """A problem on the device over caches in e4m3."""

    def make(rows, head_size, *, dtype=torch.bfloat16, num_heads=8, num_kv_heads=2, **options):
        return make_attention_case(
            rows,
            head_size=head_size,
            dtype=dtype,
            cache_dtype=E4M3,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            device="cuda",
            **options,
        )

    return make


def _scales(num_kv_heads):
    generator = torch.Generator().manual_seed(1)
    key, value = 0.2 + torch.rand(2, num_kv_heads, generator=generator)
    return {"key_scale": key.cuda(), "value_scale": value.cuda()}


def _poison(case, window):
    """NaN in every slot that holds no key which a query of a row may see."""
    held = torch.zeros(case.key_cache.shape[:2], dtype=torch.bool, device="cuda")
    block_size = held.shape[1]
    for row, (num_queries, context) in enumerate(case.rows):
        first = 0 if window is None else max(0, context - num_queries - window + 1) // block_size * block_size
        if context > first:
            at = torch.arange(first, context, device="cuda")
            held[case.metadata.block_tables[row].long()[at // block_size], at % block_size] = True
    for cache in (case.key_cache, case.value_cache):
        cache.view(torch.uint8)[~held] = NAN


def _error(case, relative_error, **options):
    """That of the CUDA back end on poisoned caches."""
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**options)
    _poison(case, options.get("sliding_window"))
    with ops.use_backend("paged_attention", "cuda"):
        return relative_error(case.run(**options), expected)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("with_scales", [False, True])
def test_rows(make_case, relative_error, dtype, head_size, with_scales):
    options = _scales(2) if with_scales else {}
    assert _error(make_case(MIXED, head_size, dtype=dtype), relative_error, **options) < BOUND[dtype]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("block_size", [8, 32, 48, 128])
def test_block_sizes(make_case, relative_error, head_size, block_size):
    case = make_case(MIXED, head_size, block_size=block_size)
    assert _error(case, relative_error, **_scales(2)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (16, 2), (14, 1), (64, 1)])
def test_groups(make_case, relative_error, head_size, num_heads, num_kv_heads):
    case = make_case(MIXED, head_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
    assert _error(case, relative_error, **_scales(num_kv_heads)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 100},
        {"chunk": 96},
        {"soft_cap": 1.0},
        {"sinks": torch.linspace(-2.0, 6.0, 8), "sliding_window": 130, "soft_cap": 20.0},
        {"causal": False},
    ],
    ids=["window", "chunk", "cap", "sinks, window and cap", "all keys"],
)
def test_options(make_case, relative_error, head_size, options):
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert (
        _error(make_case(MIXED, head_size), relative_error, **options, **_scales(2)) < BOUND[torch.bfloat16]
    )


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_number_of_e4m3_counts(make_case, relative_error, head_size):
    case = make_case([(200, 500)], head_size)
    numbers = torch.arange(256, dtype=torch.uint8, device="cuda")
    numbers = numbers[~numbers.view(E4M3).float().isnan()]
    small = numbers[numbers.view(E4M3).float().abs() < 2.0**-6]  # subnormal
    generator = torch.Generator("cuda").manual_seed(3)
    for chosen, scale in ((numbers, 1 / 64), (small, 16.0)):
        for cache in (case.key_cache, case.value_cache):
            drawn = torch.randint(len(chosen), cache.shape, generator=generator, device="cuda")
            cache.view(torch.uint8).copy_(chosen[drawn])
        scales = torch.full((2,), scale, device="cuda")
        error = _error(case, relative_error, key_scale=scales, value_scale=scales)
        assert error < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_results_do_not_vary(make_case, head_size):
    case = make_case(MIXED, head_size)
    with ops.use_backend("paged_attention", "cuda"):
        first = case.run()
        assert all(torch.equal(case.run().nan_to_num(), first.nan_to_num()) for _ in range(5))


@pytest.mark.parametrize("head_size", [64, 128])
def test_many_rows(make_case, relative_error, head_size):
    case = make_case(
        [(i % 37 + 2, 37 * i % 1100 + 40) for i in range(90)], head_size, num_heads=16, num_kv_heads=8
    )
    assert _error(case, relative_error, **_scales(8)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_log_sum_exp(make_case, head_size):
    from llm_kernels.cuda.attention import prefill_rows
    from llm_kernels.triton.attention_arguments import Arguments

    case = make_case([(40, 300)], head_size)
    log_sum_exp = torch.full((8, 40), float("nan"), device="cuda")
    scales = _scales(2)
    arguments = Arguments(
        out=torch.empty_like(case.query),
        query=case.query,
        keys=case.key_cache,
        values=case.value_cache,
        scale=case.scale,
        **scales,
    )
    prefill_rows(arguments, case.metadata, log_sum_exp)
    at = torch.arange(300, device="cuda")
    key = case.key_cache[case.metadata.block_tables[0].long()[at // 16], at % 16].float()
    key = (key * scales["key_scale"][:, None]).repeat_interleave(4, 1)
    scores = torch.einsum("qhd,chd->hqc", case.query.float(), key) * case.scale
    expected = scores.masked_fill(at > torch.arange(260, 300, device="cuda")[:, None], float("-inf"))
    torch.testing.assert_close(log_sum_exp, expected.logsumexp(-1), atol=1e-3, rtol=1e-4)


def test_large_queries_are_cut_off(make_case):
    case = make_case([(64, 64)], 128)
    case.query[:, :, 0] = 1e30
    with ops.use_backend("paged_attention", "cuda"):
        assert case.run().isfinite().all()


def test_unfit_tensors_are_named(make_case):
    from llm_kernels.cuda.attention import prefill_rows
    from llm_kernels.triton.attention_arguments import Arguments

    case = make_case([(40, 300)], 64)
    given = {
        "out": torch.empty_like(case.query),
        "query": case.query,
        "keys": case.key_cache,
        "values": case.value_cache,
        "scale": case.scale,
        **_scales(2),
    }
    for field, changed in (
        ("value_cache", {"values": case.value_cache.bfloat16()}),
        ("key_scale", {"key_scale": torch.ones(3, device="cuda")}),
        ("value_scale", {"value_scale": torch.ones(2, device="cuda", dtype=torch.float64)}),
        ("key_scale", {"keys": case.key_cache.bfloat16(), "values": case.value_cache.bfloat16()}),
    ):
        with pytest.raises(InvalidArgument, match=field):
            prefill_rows(Arguments(**{**given, **changed}), case.metadata)
