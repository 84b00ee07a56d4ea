"""The CUDA kernel of decode attention in even shares against the float32 reference."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
HEADS = {1: (4, 4), 2: (16, 8), 3: (6, 2), 4: (32, 8), 8: (8, 1), 12: (24, 2), 16: (16, 1)}
SHORT = [(1, length) for length in (0, 1, 15, 16, 17, 0, 31, 32, 33, 640, 100)]
ROWS = {
    "one": [(1, 9000)],
    "none": [(1, 0), (1, 0)],
    "short": SHORT,
    "long and short": [(1, 16), (1, 12_001), *SHORT, (1, 2049), (1, 5)],
    "many": [(1, 17 + (1009 * i) % 1500) for i in range(200)],
    "padded": [(1, 0), *[(1, 900 + 31 * i) for i in range(40)], *[(1, 0)] * 3, (1, 77), *[(1, 0)] * 70],
    "very many": [(1, 1 + (37 * i) % 90) for i in range(1100)],
}
SHARES = [(1, 16), (2, 128), (1, 64), (4, 32), (3, 256)]
TWO = SHARES[:2]


@pytest.fixture
def decode():
    try:
        from llm_kernels.cuda import decode_attention
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return decode_attention


def _arguments(case, **options):
    from llm_kernels.triton.attention_arguments import Arguments

    out = torch.full_like(case.query, float("nan"))
    return Arguments(
        out=out, query=case.query, keys=case.key_cache, values=case.value_cache, scale=case.scale, **options
    )


def _run(decode, case, share, **options):
    arguments = _arguments(case, **options)
    decode.decode_evenly(arguments, case.metadata, decode.EvenShare(*share))
    with ops.use_backend("paged_attention", "torch"):
        return arguments.out, case.run(**options)


def _case(make_attention_case, ratio, rows, head_size=128, dtype=torch.bfloat16, **options):
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


@pytest.mark.parametrize("share", TWO, ids=str)
@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize("rows", ROWS)
def test_lengths(decode, make_attention_case, relative_error, rows, ratio, share):
    case = _case(make_attention_case, ratio, ROWS[rows])
    out, expected = _run(decode, case, share)
    if rows == "none":
        assert torch.equal(out, torch.zeros_like(out))
    else:
        assert relative_error(out, expected) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=str)
def test_shares(decode, make_attention_case, relative_error, share, cache_dtype):
    case = _case(make_attention_case, 4, ROWS["many"], cache_dtype=cache_dtype)
    assert relative_error(*_run(decode, case, share)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("ratio", [1, 2, 4, 16])
@pytest.mark.parametrize("rows", ["short", "long and short"])
def test_caches_in_e4m3(decode, make_attention_case, relative_error, rows, ratio):
    case = _case(make_attention_case, ratio, ROWS[rows], cache_dtype=torch.float8_e4m3fn)
    generator = torch.Generator().manual_seed(1)
    scales = [(0.2 + torch.rand(HEADS[ratio][1], generator=generator)).cuda() for _ in range(2)]
    options = {"key_scale": scales[0], "value_scale": scales[1]}
    for share in TWO:
        assert relative_error(*_run(decode, case, share, **options)) < BOUND[torch.bfloat16]
        assert relative_error(*_run(decode, case, share)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", TWO, ids=str)
@pytest.mark.parametrize("name", ["window", "narrow window", "chunk", "sinks", "cap", "window and sinks"])
def test_options(decode, make_attention_case, relative_error, share, name):
    sinks = torch.linspace(-2.0, 6.0, 32, device="cuda")
    options = {
        "window": {"sliding_window": 100},
        "narrow window": {"sliding_window": 3},
        "chunk": {"chunk": 96},
        "sinks": {"sinks": sinks},
        "cap": {"soft_cap": 1.0},
        "window and sinks": {"sliding_window": 1030, "sinks": sinks.bfloat16()},
    }[name]
    case = _case(make_attention_case, 4, ROWS["long and short"])
    assert relative_error(*_run(decode, case, share, **options)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", TWO, ids=str)
@pytest.mark.parametrize("ratio", [2, 4, 16])
def test_shared_prefix(decode, make_attention_case, share_prefixes, relative_error, ratio, share):
    case = _case(make_attention_case, ratio, [(1, 2049 + 3 * i) for i in range(70)])
    share_prefixes(case, [(list(range(3, 40)), 512), ([0, 69, 1, 41], 2000), ([50, 55], 16)])
    sinks = torch.linspace(-2.0, 6.0, HEADS[ratio][0], device="cuda")
    assert relative_error(*_run(decode, case, share)) < BOUND[torch.bfloat16]
    assert relative_error(*_run(decode, case, share, sinks=sinks)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", TWO, ids=str)
@pytest.mark.parametrize("block_size", [32, 64])
def test_larger_blocks(decode, make_attention_case, relative_error, block_size, share):
    case = _case(make_attention_case, 2, ROWS["long and short"], block_size=block_size)
    assert relative_error(*_run(decode, case, share)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", TWO, ids=str)
def test_a_captured_call_follows_the_lengths(decode, make_attention_case, relative_error, share):
    case = _case(make_attention_case, 4, [(1, 3000), (1, 2000), (1, 100)])
    arguments, share = _arguments(case), decode.EvenShare(*share)
    decode.decode_evenly(arguments, case.metadata, share)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            decode.decode_evenly(arguments, case.metadata, share)
    for lengths in ([1500, 7, 100], [1, 2000, 0], [3000, 2000, 100]):
        case.metadata.context_lens.copy_(torch.tensor(lengths))
        case.rows[:] = [(1, length) for length in lengths]
        arguments.out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert relative_error(arguments.out, case.expected()) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("share", TWO, ids=str)
def test_equal_calls_are_equal_to_the_bit(decode, make_attention_case, share):
    case = _case(make_attention_case, 4, ROWS["many"])
    results = []
    for _ in range(2):
        arguments = _arguments(case)
        decode.decode_evenly(arguments, case.metadata, decode.EvenShare(*share))
        results.append(arguments.out)
    assert torch.equal(*results)
