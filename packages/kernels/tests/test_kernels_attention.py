"""Paged attention on the CPU: every back end and instruction set against dense float32 attention."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.cpu.library import native
from llm_kernels.errors import BackendUnavailable, InvalidArgument

MIXED = [(1, 1), (1, 16), (1, 17), (1, 200), (5, 5), (3, 70), (40, 100), (33, 33)]
BOUND = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def _isas() -> list[str]:
    try:
        best = native("cpu_isa")()
    except BackendUnavailable:
        return []
    order = ["baseline", "avx2", "avx512", "amx"]
    return order[: order.index(best) + 1]


@pytest.fixture(params=["torch", *(f"cpp-{isa}" for isa in _isas())])
def backend(request):
    name, _, isa = request.param.partition("-")
    if isa:
        before = native("cpu_isa")()
        native("force_cpu_isa")(isa)
    with ops.use_backend("paged_attention", name):
        yield name
    if isa:
        native("force_cpu_isa")(before)


def test_the_native_library_is_built():
    assert ops.selected("paged_attention", "cpu", torch.float32, 64) == "cpp"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size"),
    [
        (4, 4, 64, 16),
        (9, 3, 64, 16),
        (8, 2, 80, 32),
        (8, 1, 128, 16),
        (5, 1, 96, 8),
        (12, 1, 256, 16),
        (2, 1, 16, 1),
    ],
)
def test_mixed_rows(
    backend, make_attention_case, relative_error, dtype, num_heads, num_kv_heads, head_size, block_size
):
    case = make_attention_case(
        MIXED,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
    )
    assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_and_split_keys(backend, make_attention_case, relative_error, num_threads):
    case = make_attention_case([(1, 3000), (2, 1500)], num_heads=3, num_kv_heads=1)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        out, windowed = case.run(), case.run(sliding_window=1200)
    finally:
        torch.set_num_threads(before)
    assert relative_error(out, case.expected()) < 1e-5
    assert relative_error(windowed, case.expected(sliding_window=1200)) < 1e-5


@pytest.mark.parametrize("sliding_window", [1, 7, 64, 65, 1000])
def test_sliding_window(backend, make_attention_case, relative_error, sliding_window):
    case = make_attention_case(MIXED)
    expected = case.expected(sliding_window=sliding_window)
    assert relative_error(case.run(sliding_window=sliding_window), expected) < 1e-5


def test_soft_cap(backend, make_attention_case, relative_error):
    case = make_attention_case(MIXED)
    assert relative_error(case.run(soft_cap=0.5), case.expected(soft_cap=0.5)) < 1e-5


def test_query_and_cache_of_unlike_dtypes(backend, make_attention_case, relative_error):
    case = make_attention_case(MIXED, cache_dtype=torch.bfloat16)
    assert relative_error(case.run(), case.expected()) < 1e-5


def test_huge_scores_do_not_overflow(backend, make_attention_case, relative_error):
    case = make_attention_case(MIXED)
    case.query.mul_(1000)
    assert relative_error(case.run(), case.expected()) < 1e-4


def test_nan_in_a_key_is_not_hidden(backend, make_attention_case):
    case = make_attention_case([(1, 40), (20, 40)])
    case.key_cache[case.metadata.block_tables[:, 0].long(), 0] = float("nan")
    assert case.run().isnan().all()


def test_padding_rows_give_zeros_and_padding_tokens_stay(backend, make_attention_case):
    case = make_attention_case([(1, 5), (1, 0), (0, 0), (4, 9)])
    out = torch.full((case.query.shape[0] + 2, *case.query.shape[1:]), 7.0)
    query = torch.zeros_like(out)
    query[:-2] = case.query
    ops.paged_attention(out, query, case.key_cache, case.value_cache, case.metadata, scale=case.scale)
    assert (out[1] == 0).all()
    assert (out[-2:] == 7).all()
    assert not (out[:1] == 7).any()


def test_no_rows(backend, make_attention_case):
    case = make_attention_case([])
    assert case.run().shape == (0, 4, 64)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("block_tables", lambda m: m.block_tables[1].fill_(1_000_000)),
        ("block_tables", lambda m: m.block_tables[1].fill_(-1)),
        ("block_tables", lambda m: setattr(m, "block_tables", m.block_tables[:, :1])),
        ("context_lens", lambda m: m.context_lens.fill_(2)),
    ],
)
def test_bad_rows_raise_and_write_nothing(make_attention_case, field, change):
    for name in ("torch", "cpp"):
        case = make_attention_case([(1, 30), (5, 40)])
        change(case.metadata)
        out = torch.full_like(case.query, 3.0)
        with ops.use_backend("paged_attention", name), pytest.raises(InvalidArgument) as caught:
            ops.paged_attention(
                out, case.query, case.key_cache, case.value_cache, case.metadata, scale=case.scale
            )
        assert caught.value.field == field
        if name == "cpp":
            assert (out == 3).all()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("query_THD", {"query": torch.zeros(6, 5, 64)}),
        ("query_THD", {"query": torch.zeros(6, 64)}),
        ("key_cache", {"key_cache": torch.zeros(9, 16, 2, 32)}),
        ("value_cache", {"value_cache": torch.zeros(9, 8, 2, 64)}),
        ("value_cache", {"value_cache": torch.zeros(9, 16, 2, 64, dtype=torch.bfloat16)}),
        ("out_THV", {"out": torch.zeros(5, 4, 64)}),
        ("out_THV", {"out": torch.zeros(6, 4, 64, dtype=torch.bfloat16)}),
        ("key_cache", {"key_cache": torch.zeros(9, 16, 2, 128)[..., ::2]}),
    ],
)
def test_cpp_names_the_argument_that_does_not_fit(make_attention_case, field, arguments):
    case = make_attention_case([(1, 30), (5, 40)])
    given = {
        "out": torch.zeros_like(case.query),
        "query": case.query,
        "key_cache": torch.zeros(9, 16, 2, 64),
        "value_cache": torch.zeros(9, 16, 2, 64),
    } | arguments
    if "query" in arguments:
        given["out"] = torch.zeros_like(arguments["query"])
    with ops.use_backend("paged_attention", "cpp"), pytest.raises(InvalidArgument) as caught:
        ops.paged_attention(
            given["out"], given["query"], given["key_cache"], given["value_cache"], case.metadata, scale=1.0
        )
    assert caught.value.field == field


@pytest.mark.parametrize("seed", range(8))
def test_random_batches(backend, make_attention_case, relative_error, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = [(1, draw(1, 150)) for _ in range(draw(0, 5))]
    for _ in range(draw(1, 4)):
        queries = draw(2, 60)
        rows.append((queries, queries + draw(0, 90)))
    case = make_attention_case(
        rows,
        num_heads=6,
        num_kv_heads=(1, 2, 3, 6)[draw(0, 4)],
        block_size=(4, 16, 32)[draw(0, 3)],
        seed=seed,
    )
    window = draw(1, 120) if draw(0, 2) else None
    assert relative_error(case.run(sliding_window=window), case.expected(sliding_window=window)) < 1e-5
