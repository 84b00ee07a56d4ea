"""Batch-invariant ops on a GPU: a row's bits alone, among many others, and in prompts cut otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from llm_kernels import ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
FLOATS = [torch.bfloat16, torch.float16, torch.float32]
COUNTS = (1, 2, 17, 64, 65, 130, 300)
"""Rows that are computed together, from both ends of all."""


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _same_in_parts(function, *columns):
    """Whether every run of rows that begins or ends all gives what all rows together give."""
    every, total = function(*columns), len(columns[0])
    for count in COUNTS:
        for begin in (0, total - count):
            part = function(*(column[begin : begin + count] for column in columns))
            assert torch.equal(part, every[begin : begin + count]), (count, begin)
    return every


def _error(out, expected):
    return float((out.float() - expected.float()).norm() / expected.float().norm())


def _random(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("in_size", "out_size"), [(1024, 4096), (3072, 1024), (4096, 6144), (130, 72)])
def test_products(dtype, in_size, out_size):
    x, weight = _random(300, in_size, dtype=dtype), _random(out_size, in_size, dtype=dtype)
    bias = _random(out_size, dtype=dtype)
    with ops.batch_invariant():
        every = _same_in_parts(lambda x: ops.linear(x, weight, bias), x)
    assert _error(every, x.double() @ weight.double().T + bias) < (1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_of_heads(dtype):
    x, weight = (
        _random(300, 16, 96, dtype=dtype)[..., 16:80],
        _random(16, 64, 128, dtype=dtype).transpose(1, 2),
    )
    with ops.batch_invariant():
        every = _same_in_parts(lambda x: ops.head_linear(x, weight), x)
    assert _error(every, torch.einsum("thi,hoi->tho", x.double(), weight.double())) < 5e-3


@pytest.mark.parametrize("blocks", [False, True], ids=["channels", "blocks"])
def test_products_of_e4m3_weights(blocks):
    x, weight = _random(300, 512, dtype=torch.bfloat16), _random(384, 512).to(torch.float8_e4m3fn)
    scale = torch.rand((3, 4) if blocks else (384,), device="cuda") + 0.5
    with ops.batch_invariant():
        every = _same_in_parts(lambda x: ops.fp8_linear(x, weight, scale), x)
    assert _error(every, ops.fp8_linear(x, weight, scale)) < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("quantized", [False, True])
def test_experts(dtype, quantized):
    if quantized and dtype == torch.float32:
        pytest.skip("e4m3 weights go with half precision")
    num_experts, top_k, size, inner = 8, 2, 512, 256
    x = _random(300, size, dtype=dtype)
    ids = torch.rand(300, num_experts, device="cuda").topk(top_k).indices
    weights = torch.rand(300, top_k, device="cuda")
    up, down = _random(num_experts, 2 * inner, size) / 20, _random(num_experts, size, inner) / 16
    scales = {}
    if quantized:
        up, down = (100 * up).to(torch.float8_e4m3fn), (100 * down).to(torch.float8_e4m3fn)
        scales = {
            name: torch.full(w.shape[:2], 0.01, device="cuda")
            for name, w in (("up_scale", up), ("down_scale", down))
        }
    else:
        up, down = up.to(dtype), down.to(dtype)

    def run(x, weights, ids):
        out = torch.empty_like(x)
        ops.moe(out, x, weights, ids, up, down, **scales)
        return out

    with ops.batch_invariant():
        every = _same_in_parts(run, x, weights, ids)
    assert _error(every, run(x, weights, ids)) < (1e-4 if dtype == torch.float32 else 0.05)


def test_many_experts_pairs_take_other_tiles():
    num_experts, size, inner = 4, 256, 128
    x = _random(1000, size, dtype=torch.bfloat16)
    ids = torch.rand(1000, num_experts, device="cuda").topk(2).indices
    weights = torch.rand(1000, 2, device="cuda")
    up, down = (
        _random(num_experts, *shape, dtype=torch.bfloat16) / 16
        for shape in ((2 * inner, size), (size, inner))
    )

    def run(x, weights, ids):
        out = torch.empty_like(x)
        ops.moe(out, x, weights, ids, up, down)
        return out

    with ops.batch_invariant():
        _same_in_parts(run, x, weights, ids)


def test_the_choice_of_experts():
    logits = _random(300, 128, dtype=torch.bfloat16)
    with ops.batch_invariant():
        for part in range(2):
            _same_in_parts(lambda x, part=part: ops.route_experts(x, top_k=8, renormalize=True)[part], logits)


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_norms_and_activations(size):
    x, weight = _random(1300, size, dtype=torch.bfloat16), _random(size, dtype=torch.bfloat16)

    def norm(x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, 1e-6)
        return out

    def added(x):
        x, residual = x.clone(), x.flip(1).contiguous()
        ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        return x

    def gate(x):
        out = x.new_empty((len(x), size // 2))
        ops.gated_activation(out, x, "silu")
        return out

    with ops.batch_invariant():
        for function in (norm, added, gate):
            _same_in_parts(function, x)


@pytest.mark.parametrize("head_size", [64, 128])
def test_norms_of_heads_with_the_write(head_size):
    """1,300 tokens, since others take other launches from 1,024 on."""
    total, heads, kv_heads = 1300, 8, 2
    query, key, value = (
        _random(total, n, head_size, dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads)
    )
    table = torch.rand(total, head_size, device="cuda")
    weights = [_random(head_size, dtype=torch.bfloat16) for _ in range(2)]
    positions = torch.arange(total, device="cuda")

    def run(query, key, value, positions):
        query, key = query.clone(), key.clone()
        caches = [
            torch.zeros(len(query), 1, kv_heads, head_size, dtype=torch.bfloat16, device="cuda")
            for _ in range(2)
        ]
        slots = torch.arange(len(query), device="cuda")
        ops.rotate_write_kv(
            query, key, value, *caches, positions, slots, table,
            query_weight=weights[0], key_weight=weights[1], eps=1e-6,
        )  # fmt: skip
        return torch.cat([query.flatten(1), caches[0].flatten(1), caches[1].flatten(1)], dim=1)

    with ops.batch_invariant():
        _same_in_parts(run, query, key, value, positions)


def test_draws_and_logprobs():
    logits = _random(300, 32_001)
    tokens = torch.randint(32_001, (300,), device="cuda")
    with ops.batch_invariant():
        _same_in_parts(lambda x, t: ops.token_ranks(x, t, 5).logprobs, logits, tokens)
        _same_in_parts(lambda x, t: ops.token_ranks(x, t, 5).top_logprobs, logits, tokens)


OPTIONS = [
    {},
    {"sliding_window": 300},
    {"chunk": 700, "sinks": "random"},
    {"soft_cap": 5.0, "alibi_slopes": "random"},
]
CONTEXT = 1100


@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_size"),
    [
        (torch.bfloat16, 32, 8, 128),
        (torch.bfloat16, 16, 8, 64),
        (torch.bfloat16, 8, 1, 256),
        (torch.float16, 14, 2, 96),
        (torch.float32, 8, 4, 64),
    ],
)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_attention(make_attention_case, dtype, heads, kv_heads, head_size, options):
    options = {k: torch.rand(heads, device="cuda") if v == "random" else v for k, v in options.items()}
    whole = make_attention_case(
        [(CONTEXT, CONTEXT)],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        dtype=dtype,
        device="cuda",
    )
    ends = [1, 2, 63, 64, 65, 300, 511, 512, 513, 700, 701, 1024, 1025, CONTEXT]
    with ops.batch_invariant():
        every = whole.run(**options)
        for size in (16, 100, 512):
            pieces = [
                _part(whole, begin, min(begin + size, CONTEXT)).run(**options)
                for begin in range(0, CONTEXT, size)
            ]
            assert torch.equal(torch.cat(pieces), every), size
        alone = torch.cat([_part(whole, end - 1, end).run(**options) for end in ends])
        assert torch.equal(alone, every[[end - 1 for end in ends]])
        assert torch.equal(_decodes(whole, ends * 40).run(**options), every[[end - 1 for end in ends * 40]])
    assert _error(every, whole.run(**options)) < (1e-4 if dtype == torch.float32 else 1e-2)


def _part(case, begin, end):
    """The step that computes the queries from `begin` to `end` of a case's only row."""
    metadata = replace(
        case.metadata,
        cu_query_lens=torch.tensor([0, end - begin], dtype=torch.int32, device="cuda"),
        context_lens=torch.tensor([end], dtype=torch.int32, device="cuda"),
        num_decodes=int(end - begin == 1),
        max_query_len=end - begin,
    )
    return replace(case, query=case.query[begin:end], metadata=metadata, rows=[(end - begin, end)])


def _decodes(case, ends):
    """A step of decode rows that all read a case's only row."""
    metadata = replace(
        case.metadata,
        cu_query_lens=torch.arange(len(ends) + 1, dtype=torch.int32, device="cuda"),
        context_lens=torch.tensor(ends, dtype=torch.int32, device="cuda"),
        block_tables=case.metadata.block_tables.expand(len(ends), -1).contiguous(),
        num_decodes=len(ends),
        max_query_len=1,
    )
    return replace(
        case, query=case.query[[end - 1 for end in ends]], metadata=metadata, rows=[(1, end) for end in ends]
    )


@pytest.mark.parametrize("programs", [1, 2, 3])
def test_any_number_of_programs_may_share_a_row(make_attention_case, programs):
    from llm_kernels.triton import invariant_attention
    from llm_kernels.triton.attention_arguments import Arguments

    case = make_attention_case(
        [(1, 1500), (1, 40), (1, 0), (1, 512)],
        num_heads=8,
        num_kv_heads=2,
        head_size=128,
        dtype=torch.bfloat16,
        device="cuda",
    )
    with ops.batch_invariant():
        expected = case.run()
    out = torch.full_like(expected, float("nan"))
    given = Arguments(
        out=out, query=case.query, keys=case.key_cache, values=case.value_cache, scale=case.scale
    )
    _, tile = invariant_attention.tiles(torch.bfloat16, 128, 4)
    invariant_attention.decode(given, case.metadata, tile, programs)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_latents(make_attention_case, dtype):
    context, heads, rank, rope = 300, 16, 128, 32
    case = make_attention_case(
        [(context, context)],
        num_heads=heads,
        num_kv_heads=1,
        head_size=rank + rope,
        dtype=dtype,
        device="cuda",
    )
    cache = case.key_cache[:, :, 0]

    def run(case):
        out = torch.empty(len(case.query), heads, rank, dtype=dtype, device="cuda")
        ops.latent_attention(out, case.query, cache, case.metadata, scale=0.1, value_size=rank)
        return out

    with ops.batch_invariant():
        every = run(case)
        for size in (1, 70):
            pieces = [
                run(_part(case, begin, min(begin + size, context))) for begin in range(0, context, size)
            ]
            assert torch.equal(torch.cat(pieces), every)
    assert _error(every, run(case)) < 1e-2
