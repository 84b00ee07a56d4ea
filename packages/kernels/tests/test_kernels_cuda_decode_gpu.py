"""The CUDA kernel of decode attention against the float32 reference, for every number of splits."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable, InvalidArgument

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
HEADS = {1: (4, 4), 2: (16, 8), 4: (32, 8), 8: (8, 1), 16: (16, 1)}
ROWS = [(1, 8000), (1, 0), (1, 1), (1, 15), (1, 16), (1, 17), (1, 640), (1, 2049), (1, 100)]
SPLITS = [1, 2, 4, 8, 16]


@pytest.fixture
def decode():
    try:
        from llm_kernels.cuda import decode_attention
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return decode_attention


def _run(decode, case, splits, warps=4, **options):
    from llm_kernels.triton.attention_arguments import Arguments

    out = torch.full_like(case.query, float("nan"))
    arguments = Arguments(
        out=out, query=case.query, keys=case.key_cache, values=case.value_cache, scale=case.scale, **options
    )
    assert decode.takes(arguments)
    decode.decode_rows(arguments, case.metadata, decode.Shape(splits, warps))
    with ops.use_backend("paged_attention", "torch"):
        return out, case.run(**options)


def _case(make_attention_case, ratio, head_size, dtype=torch.bfloat16, rows=ROWS, **options):
    num_heads, num_kv_heads = HEADS[ratio]
    return make_attention_case(
        rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=dtype,
        device="cuda",
        **options,
    )


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("ratio", HEADS)
def test_decode(decode, make_attention_case, relative_error, splits, head_size, ratio):
    case = _case(make_attention_case, ratio, head_size)
    assert relative_error(*_run(decode, case, splits)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("warps", [1, 2, 8])
@pytest.mark.parametrize("splits", [1, 16])
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=str)
def test_blocks_of_other_warps(decode, make_attention_case, relative_error, warps, splits, cache_dtype):
    case = _case(make_attention_case, 4, 128, cache_dtype=cache_dtype)
    assert relative_error(*_run(decode, case, splits, warps)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("splits", [1, 16])
@pytest.mark.parametrize("block_size", [32, 64])
def test_half_precision_and_larger_blocks(decode, make_attention_case, relative_error, splits, block_size):
    case = _case(make_attention_case, 4, 128, torch.float16, block_size=block_size)
    assert relative_error(*_run(decode, case, splits)) < BOUND[torch.float16]


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("name", ["window", "narrow window", "chunk", "sinks", "cap", "window and sinks"])
def test_options(decode, make_attention_case, relative_error, splits, name):
    sinks = torch.linspace(-2.0, 6.0, 32, device="cuda")
    options = {
        "window": {"sliding_window": 100},
        "narrow window": {"sliding_window": 3},
        "chunk": {"chunk": 96},
        "sinks": {"sinks": sinks},
        "cap": {"soft_cap": 1.0},
        "window and sinks": {"sliding_window": 1030, "sinks": sinks.bfloat16()},
    }[name]
    case = _case(make_attention_case, 4, 128)
    assert relative_error(*_run(decode, case, splits, **options)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("splits", [1, 2, 16])
@pytest.mark.parametrize("ratio", [2, 4, 16])
def test_shared_prefix(decode, make_attention_case, share_prefixes, relative_error, splits, ratio):
    case = _case(make_attention_case, ratio, 128, rows=[(1, 2049 + 3 * i) for i in range(70)])
    share_prefixes(case, [(list(range(3, 40)), 512), ([0, 69, 1, 41], 2000), ([50, 55], 16)])
    assert relative_error(*_run(decode, case, splits)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("ratio", [2, 4, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_caches_in_e4m3(decode, make_attention_case, relative_error, splits, head_size, ratio, dtype):
    case = _case(make_attention_case, ratio, head_size, dtype, cache_dtype=torch.float8_e4m3fn)
    generator = torch.Generator().manual_seed(1)
    num_kv_heads = HEADS[ratio][1]
    scales = [(0.2 + torch.rand(num_kv_heads, generator=generator)).cuda() for _ in range(2)]
    options = {"key_scale": scales[0], "value_scale": scales[1]}
    assert relative_error(*_run(decode, case, splits, **options)) < BOUND[dtype]
    assert relative_error(*_run(decode, case, splits)) < BOUND[dtype]


def test_many_rows(decode, make_attention_case, relative_error):
    case = _case(make_attention_case, 4, 128, rows=[(1, 17 + 8 * i) for i in range(256)])
    assert relative_error(*_run(decode, case, 1)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 64, 200])
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=str)
def test_the_op_takes_the_best_kernel(make_attention_case, relative_error, num_rows, cache_dtype):
    rows = [(1, 40 + 29 * i) for i in range(num_rows)]
    case = _case(make_attention_case, 4, 128, rows=rows, cache_dtype=cache_dtype)
    with ops.use_backend("paged_attention", "cuda"):
        out = case.run()
    with ops.use_backend("paged_attention", "torch"):
        assert relative_error(out, case.run()) < BOUND[torch.bfloat16]


def test_a_captured_call_follows_the_lengths(decode, make_attention_case, relative_error):
    from llm_kernels.triton.attention_arguments import Arguments

    case = _case(make_attention_case, 4, 128, rows=[(1, 3000), (1, 2000), (1, 100)])
    out = torch.zeros_like(case.query)
    arguments = Arguments(
        out=out, query=case.query, keys=case.key_cache, values=case.value_cache, scale=case.scale
    )
    decode.decode_rows(arguments, case.metadata, decode.Shape(8, 8))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode.decode_rows(arguments, case.metadata, decode.Shape(8, 8))
    for lengths in ([1500, 7, 100], [1, 2000, 0]):
        case.metadata.context_lens.copy_(torch.tensor(lengths))
        case.rows[:] = [(1, length) for length in lengths]
        graph.replay()
        torch.cuda.synchronize()
        assert relative_error(out, case.expected()) < 1e-2


def test_what_does_not_fit_is_refused(decode, make_attention_case):
    from llm_kernels.triton.attention_arguments import Arguments

    case = _case(make_attention_case, 4, 128)
    arguments = Arguments(
        out=torch.empty_like(case.query),
        query=case.query,
        keys=case.key_cache,
        values=case.value_cache,
        scale=case.scale,
    )
    with pytest.raises(InvalidArgument) as caught:
        decode.decode_rows(arguments, case.metadata, decode.Shape(3, 4))
    assert caught.value.field == "splits"
