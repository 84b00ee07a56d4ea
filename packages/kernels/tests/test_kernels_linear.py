"""Linear and gated linear on the CPU, against float64, in each instruction set of the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from llm_kernels import ops
from llm_kernels.cpu.library import native
from llm_kernels.errors import BackendUnavailable, InvalidArgument

GATES = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: torch.relu(x).square(),
}
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


def _problem(
    tokens: int, inner: int, in_size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(tokens + inner + in_size)
    x = torch.randn(tokens, in_size).to(dtype)
    weight = (torch.randn(2 * inner, in_size) * in_size**-0.5).to(dtype)
    return x, weight, torch.randn(2 * inner).to(dtype)


# Whole tiles and blocks, one more, one less; rows that no vector and no tile divides.
SHAPES = [
    (1, 64, 32),
    (1, 40, 7),
    (2, 100, 33),
    (3, 576, 49),
    (9, 31, 5),
    (16, 96, 64),
    (17, 130, 70),
    (33, 576, 96),
    (64, 64, 48),
    (70, 33, 17),
]


@pytest.fixture(params=["baseline", "avx2", "avx512", "amx"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = str(native("cpu_isa")())
    try:
        native("force_cpu_isa")(request.param)
    except ValueError:
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    native("force_cpu_isa")(before)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("tokens", "in_size", "out_size"), SHAPES)
@pytest.mark.parametrize("gate", [None, "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_in_each_instruction_set(
    isa: str,
    dtype: torch.dtype,
    tokens: int,
    in_size: int,
    out_size: int,
    gate: str | None,
    has_bias: bool,
    relative_error: Callable[..., float],
) -> None:
    """The kernels themselves: the back end gives rows beyond `linear_most_tokens` to torch."""
    x, both_weights, both_biases = _problem(tokens, out_size, in_size, dtype)
    rows = out_size if gate is None else 2 * out_size
    weight, bias = both_weights[:rows], both_biases[:rows] if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    out = torch.full((tokens, out_size), float("nan"), dtype=dtype)
    if gate is None:
        native("linear")(out, x, weight, bias, 2)
    else:
        native("gated_linear")(out, x, weight, bias, gate, 2)
        expected = GATES[gate](expected[:, :out_size]) * expected[:, out_size:]
    assert relative_error(out, expected) < BOUNDS[dtype]


@pytest.mark.parametrize("tokens", [1, 20])
def test_products_read_and_write_between_other_rows(isa: str, tokens: int) -> None:
    torch.manual_seed(3)
    fused = torch.randn(tokens, 160).bfloat16()
    weights = torch.randn(48, 160).bfloat16()
    wide = torch.full((tokens, 50), 7.0).bfloat16()
    native("linear")(wide[:, 1:49], fused[:, 32:132], weights[:, 32:132], None, 2)
    expected = fused[:, 32:132].double() @ weights[:, 32:132].double().T
    assert (wide[:, 1:49].double() - expected).abs().max() < 8e-3 * expected.abs().max()
    assert (wide[:, [0, 49]] == 7).all()


def test_products_of_one_and_of_more_threads_are_the_same(isa: str) -> None:
    x, weight, _ = _problem(40, 100, 96, torch.bfloat16)
    once, again = torch.empty(2, 40, 200, dtype=torch.bfloat16)
    native("linear")(once, x, weight, None, 1)
    native("linear")(again, x, weight, None, 3)
    assert torch.equal(once, again)


def test_few_rows_stay_here_and_many_go_to_torch_where_there_are_no_tiles(isa: str) -> None:
    most = native("linear_most_tokens")
    assert most(False) == 8
    assert most(True) == (2**63 - 1 if isa == "amx" else 8)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("tokens", [0, 1, 8, 9, 40])
def test_linear_takes_leading_dimensions(
    isa: str, dtype: torch.dtype, tokens: int, relative_error: Callable[..., float]
) -> None:
    x, weight, bias = _problem(2 * tokens, 20, 64, dtype)
    out = ops.linear(x.view(2, tokens, 64), weight, bias)
    assert out.shape == (2, tokens, 40)
    expected = x.double() @ weight.double().T + bias.double()
    assert tokens == 0 or relative_error(out.view(-1, 40), expected) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("backend", ["torch", "composed"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_linear_is_the_activation_of_the_first_half_times_the_second(
    dtype: torch.dtype, kind: str, backend: str, has_bias: bool, relative_error: Callable[..., float]
) -> None:
    x, weight, bias = _problem(5, 24, 40, dtype)
    both = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    expected = GATES[kind](both[:, :24]) * both[:, 24:]
    with ops.use_backend("gated_linear", backend):
        out = ops.gated_linear(x, weight, kind, bias if has_bias else None)
    assert out.shape == (5, 24)
    assert out.dtype == dtype
    assert relative_error(out, expected) < BOUNDS[dtype]


@pytest.mark.parametrize("shape", [(), (256,), (2, 3)])
@pytest.mark.parametrize("backend", ["torch", "composed"])
def test_gated_linear_takes_float8_weights(
    shape: tuple[int, ...], backend: str, relative_error: Callable[..., float]
) -> None:
    x, weight, bias = _problem(3, 128, 260, torch.float32)
    weight, scale = weight.to(torch.float8_e4m3fn), torch.rand(shape) + 0.5
    wide = scale[:, None] if len(shape) == 1 else scale
    if len(shape) == 2:
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :260]
    both = x.double() @ (weight.double() * wide).T + bias.double()
    with ops.use_backend("gated_linear", backend):
        out = ops.gated_linear(x, weight, "silu", bias, weight_scale=scale)
    assert relative_error(out, GATES["silu"](both[:, :128]) * both[:, 128:]) < 1e-6


def test_gated_linear_of_no_rows_is_empty() -> None:
    x, weight, _ = _problem(0, 8, 16, torch.float32)
    assert ops.gated_linear(x, weight).shape == (0, 8)


@pytest.mark.parametrize(
    ("field", "x_shape", "weight_shape", "kind"),
    [
        ("x", (2, 3, 16), (8, 16), "silu"),
        ("weight", (2, 16), (7, 16), "silu"),
        ("weight", (2, 16), (8, 24), "silu"),
        ("kind", (2, 16), (8, 16), "xielu"),
        ("kind", (2, 16), (8, 16), "nothing"),
    ],
)
def test_gated_linear_names_what_does_not_fit(
    field: str, x_shape: tuple[int, ...], weight_shape: tuple[int, ...], kind: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        ops.gated_linear(torch.zeros(x_shape), torch.zeros(weight_shape), kind)
    assert error.value.field == field


def test_the_streaming_kernels_are_for_the_gpu() -> None:
    x, weight, _ = _problem(2, 8, 16, torch.bfloat16)
    for name in ("linear", "gated_linear"):
        with ops.use_backend(name, "cuda"), pytest.raises(BackendUnavailable):
            getattr(ops, name)(x, weight)
