"""Decode attention on a CUDA device over a grid of rows, contexts and heads, also with shared prefixes."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BOUND = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
HEADS = {1: (4, 4), 2: (16, 8), 4: (32, 8), 8: (8, 1)}
ROWS = {
    "one short": [(1, 1)],
    "one": [(1, 1000)],
    "one long": [(1, 8192)],
    "few": [(1, 8192), (1, 0), (1, 63), (1, 129), (1, 4096)],
    "some": [(1, 1 + 257 * i) for i in range(32)],
    "many": [(1, 17 + 8 * i) for i in range(256)],
}


def _against_reference(case, **options):
    """The result of the Triton kernels, and that of the reference on the same tensors in float32."""
    with ops.use_backend("paged_attention", "triton"):
        out = case.run(**options)
    with ops.use_backend("paged_attention", "torch"):
        return out, case.run(**options)


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize("rows", ROWS)
def test_decode(make_attention_case, relative_error, head_size, ratio, rows):
    num_heads, num_kv_heads = HEADS[ratio]
    case = make_attention_case(
        ROWS[rows],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=torch.bfloat16,
        device="cuda",
    )
    assert relative_error(*_against_reference(case)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rows", ["few", "some"])
def test_decode_in_other_formats(make_attention_case, relative_error, dtype, rows):
    case = make_attention_case(ROWS[rows], num_heads=8, num_kv_heads=2, dtype=dtype, device="cuda")
    assert relative_error(*_against_reference(case)) < BOUND[dtype]


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("ratio", HEADS)
@pytest.mark.parametrize(
    ("num_rows", "groups"),
    [
        (128, [(list(range(128)), 2048)]),
        (5, [([4, 0, 2], 1040)]),
        (70, [(list(range(3, 40)), 512), ([0, 69, 1, 41], 2000), ([50, 55], 16)]),
    ],
    ids=["one", "small", "three"],
)
def test_shared_prefix(
    make_attention_case, share_prefixes, relative_error, head_size, ratio, num_rows, groups
):
    num_heads, num_kv_heads = HEADS[ratio]
    case = make_attention_case(
        [(1, 2049 + 3 * i) for i in range(num_rows)],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=torch.bfloat16,
        device="cuda",
    )
    share_prefixes(case, groups)
    assert relative_error(*_against_reference(case)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("name", ["sinks", "alibi", "cap", "window", "float32"])
def test_shared_prefix_with_options(make_attention_case, share_prefixes, relative_error, name):
    options = {
        "sinks": {"sinks": torch.linspace(-2.0, 6.0, 8, device="cuda")},
        "alibi": {"alibi_slopes": 2.0 ** -torch.arange(1.0, 9.0, device="cuda")},
        "cap": {"soft_cap": 1.0},
        "window": {"sliding_window": 300},
        "float32": {},
    }[name]
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    case = make_attention_case(
        [(1, 700 + i) for i in range(20)], num_heads=8, num_kv_heads=2, dtype=dtype, device="cuda"
    )
    share_prefixes(case, [(list(range(2, 20)), 640)])
    assert relative_error(*_against_reference(case, **options)) < BOUND[dtype]


def test_a_captured_call_follows_lengths_and_groups(make_attention_case, share_prefixes, relative_error):
    case = make_attention_case(
        [(1, 3000), (1, 2000), (1, 100), (1, 2100)],
        num_heads=8,
        num_kv_heads=2,
        dtype=torch.bfloat16,
        device="cuda",
    )
    tables = case.metadata.block_tables.clone()
    share_prefixes(case, [([0, 1], 1600)])
    captured = case.metadata.shared_prefix
    out = torch.zeros_like(case.query)

    def call():
        ops.paged_attention(
            out, case.query, case.key_cache, case.value_cache, case.metadata, scale=case.scale
        )

    with ops.use_backend("paged_attention", "triton"):
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    for lengths, groups in (
        ([2900, 1700, 5, 0], [([0, 1], 1600)]),
        ([1, 2000, 100, 2000], []),
        ([2500, 1999, 0, 2100], [([1, 3], 64), ([0], 160)]),
    ):
        case.metadata.block_tables.copy_(tables)
        share_prefixes(case, groups)
        for field in ("prefix_lens", "member_rows", "cu_members", "group_lens"):
            getattr(captured, field).copy_(getattr(case.metadata.shared_prefix, field))
        case.metadata.context_lens.copy_(torch.tensor(lengths))
        case.rows[:] = [(1, length) for length in lengths]
        graph.replay()
        torch.cuda.synchronize()
        assert relative_error(out, case.expected()) < 1e-2
