"""The weight-streaming products in CUDA C++, against float32 on the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference.gated_linear import gated_linear as reference_gated_linear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU"
    ),
]

BOUND = 5e-3  # of bfloat16 results; the inputs are the same
TOKENS = (1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128)
SHAPES = ((4096, 1024), (1024, 3072), (192, 4096), (8, 64), (72, 200), (1000, 4096), (24, 8))
PLANS = [(*sizes, 0, 0) for sizes in itertools.product((1, 2, 4), (1, 2, 3, 8), (1, 3))]
ROW_PLANS = [(0, 0, 0, *sizes) for sizes in ((1, 8), (1, 16), (2, 4), (2, 8))]
FRAGMENT_PLANS = [(0, 0, *sizes) for sizes in itertools.product((1, 3), (8, 16), (4, 8))]
BY_SHAPE = (0, 0, 0, 0, 0)


def _problem(
    tokens: int, out_size: int, in_size: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed + tokens + out_size + in_size)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    weight = (draw(out_size, in_size) * in_size**-0.5).bfloat16()
    return draw(tokens, in_size).bfloat16(), weight, draw(out_size).bfloat16()


def _exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def _streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    gate: int = 0,
    plan: tuple[int, ...] = BY_SHAPE,
) -> torch.Tensor:
    from llm_kernels.cuda.linear import streamed

    columns = weight.shape[0] // (2 if gate else 1)
    out = torch.full((x.shape[0], columns), float("nan"), dtype=torch.bfloat16, device="cuda")
    streamed(out, x, weight, bias, scale, gate, plan)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_streamed_products_are_those_of_float64(
    tokens: int, shape: tuple[int, int], relative_error: Callable[..., float]
) -> None:
    x, weight, bias = _problem(tokens, *shape)
    assert relative_error(_streamed(x, weight), _exact(x, weight)) < BOUND
    assert relative_error(_streamed(x, weight, bias), _exact(x, weight, bias)) < BOUND


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_computes_the_same_product(
    plan: tuple[int, ...], relative_error: Callable[..., float]
) -> None:
    for tokens in (3, 16, 30, 64):
        x, weight, bias = _problem(tokens, 1096, 1864)
        assert relative_error(_streamed(x, weight, bias, plan=plan), _exact(x, weight, bias)) < BOUND


@pytest.mark.parametrize("plan", ROW_PLANS)
def test_the_kernels_of_one_token_compute_the_same_product(
    plan: tuple[int, ...], relative_error: Callable[..., float]
) -> None:
    for out_size, in_size in ((1024, 1024), (1000, 3072), (8, 72), (4096, 4096), (264, 12288)):
        x, weight, bias = _problem(1, out_size, in_size)
        assert relative_error(_streamed(x, weight, plan=plan), _exact(x, weight)) < BOUND
        assert relative_error(_streamed(x, weight, bias, plan=plan), _exact(x, weight, bias)) < BOUND
        if plan[3] % 2 == 0 and out_size % 16 == 0:
            expected = reference_gated_linear(x.float(), weight.float(), "silu", bias.float(), None)
            assert relative_error(_streamed(x, weight, bias, gate=1, plan=plan), expected) < 1.5 * BOUND


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_gated_products_are_those_of_float32(
    tokens: int, kind: str, relative_error: Callable[..., float]
) -> None:
    gate = {"silu": 1, "gelu": 2, "gelu_tanh": 3}[kind]
    for shape in ((6144, 1024), (48, 256), (2 * 1000, 4096)):
        x, weight, bias = _problem(tokens, *shape)
        expected = reference_gated_linear(x.float(), weight.float(), kind, bias.float(), None)
        plans = [BY_SHAPE, (2, 2, 3, 0, 0)] + ([(4, 3, 1, 0, 0)] if tokens <= 64 else [])
        for plan in plans:
            out = _streamed(x, weight, bias, gate=gate, plan=plan)
            assert relative_error(out, expected) < 1.5 * BOUND


def _float8(out_size: int, in_size: int, codes_below: int = 127) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights that use all of the range of e4m3, or subnormals only, and their float64 values."""
    generator = torch.Generator(device="cuda").manual_seed(out_size + in_size)
    codes = torch.randint(0, 256, (out_size, in_size), generator=generator, device="cuda", dtype=torch.uint8)
    codes[(codes & 127) >= codes_below] &= 135  # 127 and 255 are not numbers, 0 to 7 are subnormal
    weight = codes.view(torch.float8_e4m3fn)
    return weight, weight.double()


@pytest.mark.parametrize("scaling", ["tensor", "channel", "block"])
@pytest.mark.parametrize("tokens", [1, 8, 13, 32, 64, 128])
def test_float8_weights_are_multiplied_exactly(
    tokens: int, scaling: str, relative_error: Callable[..., float]
) -> None:
    for out_size, in_size in ((1024, 3072), (4096, 1024), (200, 144), (72, 16)):
        weight, values = _float8(out_size, in_size)
        x = torch.randn(tokens, in_size, device="cuda").bfloat16()
        shape = {"tensor": (), "channel": (out_size,), "block": (-(-out_size // 128), -(-in_size // 128))}
        scale = torch.rand(shape[scaling], device="cuda") + 0.5
        wide = scale[:, None] if scaling == "channel" else scale
        if scaling == "block":
            wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:out_size, :in_size]
        expected = x.double() @ (values * wide).T
        plans = [BY_SHAPE, (1, 4, 2, 0, 0)] + ([(2, 2, 1, 0, 0)] if tokens <= 64 else [])
        plans += FRAGMENT_PLANS if tokens <= 8 else []
        for plan in plans:
            assert relative_error(_streamed(x, weight, scale=scale, plan=plan), expected) < BOUND
        if out_size % 128 == 0 and not (scaling == "block" and tokens > 64):
            expected = reference_gated_linear(x.float(), weight, "silu", None, scale)
            for plan in (BY_SHAPE, *(p for p in FRAGMENT_PLANS if p[3] == 16 and tokens <= 8)):
                out = _streamed(x, weight, scale=scale, gate=1, plan=plan)
                assert relative_error(out, expected) < 1.5 * BOUND


@pytest.mark.parametrize("tokens", [1, 9, 30, 64, 200])
@pytest.mark.parametrize("scaling", ["tensor", "channel", "block"])
def test_quantized_tokens_are_multiplied_by_float8_weights(
    tokens: int, scaling: str, relative_error: Callable[..., float]
) -> None:
    for out_size, in_size in ((1024, 3072), (200, 144), (4096, 4096)):
        weight, _ = _float8(out_size, in_size)
        values, _ = _float8(tokens, in_size)
        scales = torch.rand(tokens, 1, device="cuda") + 0.5
        shape = {"tensor": (), "channel": (out_size,), "block": (-(-out_size // 128), -(-in_size // 128))}
        scale = torch.rand(shape[scaling], device="cuda") + 0.5
        bias = torch.randn(out_size, device="cuda").bfloat16()
        with ops.use_backend("fp8_product", "torch"):
            expected = ops.fp8_product(values, scales, weight, scale, bias, dtype=torch.bfloat16)
        out = ops.fp8_product(values, scales, weight, scale, bias, dtype=torch.bfloat16)
        assert relative_error(out, expected) < 2 * BOUND


@pytest.mark.parametrize("plan", [(1, 4, 2, 0, 0), (0, 0, 1, 8, 4), (0, 0, 1, 16, 8)])
def test_subnormal_float8_weights_count(plan: tuple[int, ...], relative_error: Callable[..., float]) -> None:
    weight, values = _float8(256, 1024, codes_below=8)
    assert 0 < values.abs().max() < 2.0**-6
    x = torch.randn(5, 1024, device="cuda").bfloat16()
    out = _streamed(x, weight, scale=torch.ones((), device="cuda"), plan=plan)
    assert relative_error(out, x.double() @ values.T) < BOUND


@pytest.mark.parametrize("tokens", [1, 20, 200])
@pytest.mark.parametrize("scaling", ["tensor", "channel", "block"])
def test_the_float8_op_streams_few_tokens_and_quantizes_many(
    tokens: int, scaling: str, relative_error: Callable[..., float]
) -> None:
    x, dense, bias = _problem(tokens, 512, 1024)
    weight = (dense.float() * 448 / dense.abs().max()).to(torch.float8_e4m3fn)
    shape = {"tensor": (), "channel": (512,), "block": (4, 8)}
    scale = torch.rand(shape[scaling], device="cuda") + 0.5
    with ops.use_backend("fp8_linear", "torch"):
        expected = ops.fp8_linear(x, weight, scale, bias)
    bound = BOUND if tokens <= 2 or (tokens <= 64 and scaling == "block") else 0.05
    assert ops.selected("fp8_linear", "cuda", torch.bfloat16) == "cuda"
    assert relative_error(ops.fp8_linear(x, weight, scale, bias), expected) < bound


@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_the_same_inputs_give_the_same_bits_also_from_a_graph(tokens: int) -> None:
    x, weight, _ = _problem(tokens, 1024, 2048)
    with ops.use_backend("linear", "cuda"):
        first = ops.linear(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [ops.linear(x, weight) for _ in range(12)]
        for _ in range(5):
            graph.replay()
            assert all(torch.equal(out, first) for out in outs)


def test_chained_products_wait_for_each_other(relative_error: Callable[..., float]) -> None:
    x, weight, _ = _problem(4, 2048, 2048)
    graph = torch.cuda.CUDAGraph()
    ops.linear(x, weight)
    with torch.cuda.graph(graph):
        y = x
        for _ in range(24):
            y = ops.linear(y, weight)
    for seed in range(4):
        x.copy_(
            torch.randn(x.shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda")
        )
        graph.replay()
        expected = x
        for _ in range(24):
            expected = torch.nn.functional.linear(expected.float(), weight.float()).bfloat16()
        assert relative_error(y, expected) < 0.05


def test_views_and_what_the_kernels_do_not_take_go_the_right_way(
    relative_error: Callable[..., float],
) -> None:
    x, weight, bias = _problem(6, 512, 1024)
    wide = torch.cat([x, x], dim=1)
    cases = [
        (wide[:, :1024], weight, bias),
        (wide[:, 8:1032].clone()[:, :1016], weight[:, :1016].contiguous(), None),
        (wide[:, 1:1025], weight, bias),  # not aligned: torch's
        (x, weight[:509], bias[:509]),  # an odd size: torch's
        (x[:0], weight, bias),
        (x.view(2, 3, 1024), weight, bias),
    ]
    for x_, weight_, bias_ in cases:
        out = ops.linear(x_, weight_, bias_)
        expected = _exact(x_, weight_, bias_)
        assert out.shape == expected.shape
        assert out.numel() == 0 or relative_error(out, expected) < BOUND


@pytest.mark.parametrize("kind", ["silu", "relu2"])
@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_the_gated_op_is_the_composed_one_to_rounding(
    kind: str, tokens: int, relative_error: Callable[..., float]
) -> None:
    x, weight, bias = _problem(tokens, 1536, 512)
    with ops.use_backend("gated_linear", "composed"):
        expected = ops.gated_linear(x, weight, kind, bias)
    assert relative_error(ops.gated_linear(x, weight, kind, bias), expected) < 2 * BOUND


def test_errors_name_the_field() -> None:
    x, weight, bias = _problem(4, 64, 128)
    bad = [
        ("x_TI", (x.float(), weight)),
        ("x_TI", (x, weight[:, :64].contiguous())),
        ("weight_OI", (x, weight.half())),
        ("x_TI", (x[:, :124].contiguous(), weight[:, :124].contiguous())),
        ("bias", (x, weight, bias[:32])),
        ("weight_scale", (x, weight.to(torch.float8_e4m3fn), None, torch.ones(3, device="cuda"))),
        ("split", (x, weight, None, None, 0, (1, 9, 1, 0, 0))),
        ("rows", (x.repeat(2, 1), weight, None, None, 0, (0, 0, 0, 1, 8))),
        ("tiles", (x, weight, None, None, 1, (1, 1, 1, 0, 0))),
    ]
    for field, arguments in bad:
        with pytest.raises(InvalidArgument) as error:
            _streamed(*arguments)
        assert error.value.field == field
