"""The batch-invariant Triton kernels in Triton's interpreter, against the references and against themselves.

As in test_kernels_interpreted the tests run in a process of their own, which `test_in_the_interpreter`
starts. Segments of keys are short there, so that rows have several.
"""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
MIXED = [(1, 40), (1, 200), (1, 0), (5, 130), (20, 175)]
SEGMENT = 64
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 20


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if INTERPRETED:
        from llm_kernels.triton import invariant_attention

        monkeypatch.setattr(invariant_attention, "SEGMENT", SEGMENT)
    yield
    torch.set_num_threads(before)


@inside
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 60},
        {"sliding_window": 20},
        {"chunk": 33},
        {"chunk": 32, "sliding_window": 20},
        {"sinks": torch.tensor([0.5, -2.0, 3.0, 40.0])},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0]), "soft_cap": 2.0},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_attention_and_its_parts(make_attention_case, relative_error, options):
    case = make_attention_case(MIXED, head_size=16)
    with ops.use_backend("paged_attention", "triton_invariant_interpreter"):
        out = case.run(**options)
    assert relative_error(out, case.expected(**options)) < 1e-5
    for programs in (1, 2, 3):
        assert torch.equal(_decode(case, programs, options), out[: case.metadata.num_decodes])


def _decode(case, programs, options):
    """The decode rows of a case by so many programs."""
    from llm_kernels.triton import invariant_attention
    from llm_kernels.triton.attention_arguments import Arguments

    shape = (case.metadata.num_decodes, *case.query.shape[1:])
    given = Arguments(
        out=torch.full(shape, float("nan"), dtype=case.query.dtype),
        query=case.query,
        keys=case.key_cache,
        values=case.value_cache,
        scale=case.scale,
        **options,
    )
    _, tile = invariant_attention.tiles(case.query.dtype, given.widest, given.group)
    invariant_attention.decode(given, case.metadata, tile, programs)
    return given.out


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("head_size", "value_size"), [(80, None), (16, 48)])
def test_head_sizes(make_attention_case, relative_error, dtype, head_size, value_size):
    case = make_attention_case(
        [(1, 70), (9, 20)], num_kv_heads=1, head_size=head_size, value_size=value_size, dtype=dtype
    )
    with ops.use_backend("paged_attention", "triton_invariant_interpreter"):
        assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@inside
def test_keys_before_a_window_are_not_read(make_attention_case):
    case = make_attention_case([(1, 120), (3, 120)], head_size=16)
    with ops.use_backend("paged_attention", "triton_invariant_interpreter"):
        expected = case.run(sliding_window=20)
        for row in range(2):
            given_back = case.metadata.block_tables[row, :6].clone().long()
            case.key_cache[given_back] = float("nan")
            case.value_cache[given_back] = float("nan")
            case.metadata.block_tables[row, :6] = 1 << 30
        assert torch.equal(case.run(sliding_window=20), expected)


@inside
def test_padding_tokens_read_nothing(make_attention_case):
    """The row that owns a step's padding tokens has no context; what lies before its table is another's."""
    case = make_attention_case([(1, 150), (3, 20), (150, 150)], head_size=16)
    before = case.query.shape[0] - 150
    with ops.use_backend("paged_attention", "triton_invariant_interpreter"):
        expected = case.run()
        case.metadata.context_lens[-1] = 0
        case.metadata.block_tables[1, 2:] = 1 << 30
        case.metadata.block_tables[2] = 1 << 30
        out = case.run()
    assert torch.equal(out[:before], expected[:before])
    assert torch.equal(out[before:], torch.zeros_like(out[before:]))


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("tokens", "in_size", "out_size"), [(1, 64, 48), (7, 100, 33), (140, 130, 40)])
def test_products(relative_error, dtype, tokens, in_size, out_size):
    x, weight = torch.randn(tokens, in_size, dtype=dtype), torch.randn(out_size, in_size, dtype=dtype)
    bias = torch.randn(out_size, dtype=dtype)
    with ops.use_backend("linear", "triton_invariant_interpreter"):
        out = ops.linear(x, weight, bias)
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert relative_error(out, expected) < BOUND[dtype]


@inside
def test_products_of_heads(relative_error):
    x, weight = torch.randn(5, 3, 40)[..., 8:], torch.randn(3, 32, 24).transpose(1, 2)
    with ops.use_backend("head_linear", "triton_invariant_interpreter"):
        out = ops.head_linear(x, weight)
    assert relative_error(out, torch.einsum("thi,hoi->tho", x, weight)) < 1e-5


@inside
def test_latents(make_attention_case, relative_error):
    case = make_attention_case([(1, 70), (6, 30), (1, 0)], num_kv_heads=1, head_size=48)
    outs = []
    for name in ("triton_invariant_interpreter", "torch"):
        out = torch.empty(len(case.query), 4, 32)
        with ops.use_backend("latent_attention", name):
            cache = case.key_cache[:, :, 0]
            ops.latent_attention(out, case.query, cache, case.metadata, scale=0.1, value_size=32)
        outs.append(out)
    assert relative_error(*outs) < 1e-5


@inside
def test_experts(relative_error):
    x, up, down = torch.randn(9, 32), torch.randn(4, 48, 32), torch.randn(4, 32, 24)
    weights, ids = torch.rand(9, 2), torch.stack([torch.randperm(4)[:2] for _ in range(9)])
    outs = []
    for name in ("triton_invariant_interpreter", "torch"):
        out = torch.empty_like(x)
        with ops.use_backend("moe", name):
            ops.moe(out, x, weights, ids, up, down)
        outs.append(out)
    assert relative_error(*outs) < 1e-5


@inside
@pytest.mark.parametrize("blocks", [False, True])
def test_products_of_e4m3_weights(relative_error, blocks):
    x, weight = torch.randn(5, 256), torch.randn(48, 256).to(torch.float8_e4m3fn)
    scale = torch.rand((1, 2) if blocks else (48,)) + 0.5
    with ops.use_backend("fp8_linear", "triton_invariant_interpreter"):
        out = ops.fp8_linear(x, weight, scale)
    with ops.use_backend("fp8_linear", "torch"):
        # The interpreter rounds to e4m3 coarsely.
        assert relative_error(out, ops.fp8_linear(x, weight, scale)) < 0.15
