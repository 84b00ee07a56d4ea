"""Linear and gated linear on the CPU, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from llm_kernels import ops
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
