"""The prefill kernel for Hopper against the float32 reference, with NaN wherever no key of a row lies."""

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

BOUND = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
HEAD_SIZES = [64, 80, 96, 128, 192, 256]
MIXED = [(1, 1), (1, 17), (1, 500), (5, 5), (64, 300), (130, 130), (17, 1000), (2, 2), (700, 3000)]
WITH_EMPTY = [*MIXED, (0, 40), (300, 0), (1, 77), (129, 129)]


def _poison(case, window):
    """NaN in every slot that holds no key which a query of a row may see."""
    held = torch.zeros(case.key_cache.shape[:2], dtype=torch.bool, device="cuda")
    block_size = held.shape[1]
    for row, (num_queries, context) in enumerate(case.rows):
        first = 0 if window is None else max(0, context - num_queries - window + 1) // block_size * block_size
        if context > first:
            at = torch.arange(first, context, device="cuda")
            held[case.metadata.block_tables[row].long()[at // block_size], at % block_size] = True
    case.key_cache[~held] = float("nan")
    case.value_cache[~held] = float("nan")


def _both(case, **options):
    """The result of the CUDA back end on poisoned caches, and that of the reference."""
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**options)
    _poison(case, options.get("sliding_window"))
    with ops.use_backend("paged_attention", "cuda"):
        return case.run(**options), expected


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("rows", [MIXED, WITH_EMPTY, [(1, 40)], [(300, 300)]], ids=["a", "b", "c", "d"])
def test_rows(make_attention_case, relative_error, dtype, head_size, rows):
    case = make_attention_case(
        rows, num_heads=8, num_kv_heads=2, head_size=head_size, dtype=dtype, device="cuda"
    )
    assert relative_error(*_both(case)) < BOUND[dtype]


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (10, 2), (16, 2), (14, 1), (64, 1)])
def test_groups(make_attention_case, relative_error, head_size, num_heads, num_kv_heads):
    case = make_attention_case(
        MIXED,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=torch.bfloat16,
        device="cuda",
    )
    assert relative_error(*_both(case)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("block_size", [8, 32, 48, 64, 128, 256])
def test_block_sizes(make_attention_case, relative_error, head_size, block_size):
    case = make_attention_case(
        WITH_EMPTY, head_size=head_size, block_size=block_size, dtype=torch.bfloat16, device="cuda"
    )
    assert relative_error(*_both(case)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize(
    "name",
    [
        "window",
        "window of one",
        "chunk",
        "chunk and window",
        "cap",
        "sinks",
        "sinks, window and cap",
        "all keys",
    ],
)
def test_options(make_attention_case, relative_error, head_size, name):
    sinks = torch.linspace(-2.0, 6.0, 8, device="cuda")
    options = {
        "window": {"sliding_window": 100},
        "window of one": {"sliding_window": 1},
        "chunk": {"chunk": 96},
        "chunk and window": {"chunk": 1024, "sliding_window": 129},
        "cap": {"soft_cap": 1.0},
        "sinks": {"sinks": sinks},
        "sinks, window and cap": {"sinks": sinks.bfloat16(), "sliding_window": 130, "soft_cap": 20.0},
        "all keys": {"causal": False},
    }[name]
    case = make_attention_case(
        WITH_EMPTY, num_heads=8, num_kv_heads=2, head_size=head_size, dtype=torch.bfloat16, device="cuda"
    )
    assert relative_error(*_both(case, **options)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", [64, 128])
def test_many_rows_and_long_ones(make_attention_case, relative_error, head_size):
    for rows in (
        [(i % 37 + 2, 37 * i % 1100 + 40) for i in range(90)],
        [(2048, 2048), (100, 6000)],
    ):
        case = make_attention_case(
            rows, num_heads=16, num_kv_heads=8, head_size=head_size, dtype=torch.bfloat16, device="cuda"
        )
        assert relative_error(*_both(case)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_results_do_not_vary(make_attention_case, head_size):
    case = make_attention_case(MIXED, head_size=head_size, dtype=torch.bfloat16, device="cuda")
    with ops.use_backend("paged_attention", "cuda"):
        first = case.run()
        assert all(torch.equal(case.run(), first) for _ in range(5))


def test_a_captured_launch_reads_lengths_from_the_device(make_attention_case, relative_error):
    case = make_attention_case(
        [(60, 300), (129, 700)], num_heads=8, head_size=128, dtype=torch.bfloat16, device="cuda"
    )
    out = torch.empty_like(case.query)

    def launch():
        ops.paged_attention(
            out, case.query, case.key_cache, case.value_cache, case.metadata, scale=case.scale
        )

    with ops.use_backend("paged_attention", "cuda"):
        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
    case.metadata.cu_query_lens.copy_(torch.tensor([0, 139, 189]))
    case.metadata.context_lens.copy_(torch.tensor([250, 555]))
    out.fill_(float("nan"))
    graph.replay()
    with ops.use_backend("paged_attention", "torch"):
        assert relative_error(out, case.run()) < BOUND[torch.bfloat16]


def test_tokens_past_the_last_row_are_left(make_attention_case):
    case = make_attention_case([(20, 50), (30, 60)], head_size=64, dtype=torch.bfloat16, device="cuda")
    case.metadata.cu_query_lens.copy_(torch.tensor([0, 15, 33]))
    with ops.use_backend("paged_attention", "cuda"):
        out = case.run()
    assert not out[:33].isnan().any()
    assert out[33:].isnan().all()


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_log_sum_exp(make_attention_case, head_size):
    from llm_kernels.cuda.attention import prefill_rows
    from llm_kernels.triton.attention_arguments import Arguments

    rows = [(1, 9), (40, 300), (129, 129)]
    case = make_attention_case(
        rows, num_heads=8, num_kv_heads=2, head_size=head_size, dtype=torch.bfloat16, device="cuda"
    )
    log_sum_exp = torch.full((8, 170), float("nan"), device="cuda")
    arguments = Arguments(
        out=torch.empty_like(case.query),
        query=case.query,
        keys=case.key_cache,
        values=case.value_cache,
        scale=case.scale,
    )
    prefill_rows(arguments, case.metadata, log_sum_exp)
    assert log_sum_exp[:, 0].isnan().all()  # a decode row
    begin = 1
    for row, (num_queries, context) in list(enumerate(rows))[1:]:
        at = torch.arange(context, device="cuda")
        key = case.key_cache[case.metadata.block_tables[row].long()[at // 16], at % 16].float()
        query = case.query[begin : begin + num_queries].float()
        scores = torch.einsum("qhd,chd->hqc", query, key.repeat_interleave(4, 1)) * case.scale
        hidden = at > torch.arange(context - num_queries, context, device="cuda")[:, None]
        expected = scores.masked_fill(hidden, float("-inf")).logsumexp(-1)
        torch.testing.assert_close(
            log_sum_exp[:, begin : begin + num_queries], expected, atol=1e-3, rtol=1e-4
        )
        begin += num_queries


def test_what_the_kernel_does_not_take_goes_to_triton(make_attention_case, relative_error):
    case = make_attention_case(
        [(1, 30), (50, 200)], head_size=64, block_size=4, dtype=torch.bfloat16, device="cuda"
    )
    assert relative_error(*_both(case)) < BOUND[torch.bfloat16]


def test_unfit_tensors_are_named(make_attention_case):
    from llm_kernels.cuda.attention import prefill_rows
    from llm_kernels.triton.attention_arguments import Arguments

    case = make_attention_case([(40, 300)], head_size=64, dtype=torch.float32, device="cuda")
    arguments = Arguments(
        out=torch.empty_like(case.query),
        query=case.query,
        keys=case.key_cache,
        values=case.value_cache,
        scale=case.scale,
    )
    with pytest.raises(InvalidArgument, match="query_THD"):
        prefill_rows(arguments, case.metadata)
