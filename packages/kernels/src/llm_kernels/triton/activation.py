"""Activations, plain and gated, in Triton; knows nothing about models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_activation, check_gate_options, check_gated, check_inner_contiguous
from llm_kernels.errors import InvalidArgument
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div

_KINDS = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "gelu_10": 3,
    "quick_gelu": 4,
    "relu": 5,
    "relu2": 6,
    "relu6": 7,
    "leaky_relu": 8,
    "hardswish": 9,
    "mish": 10,
    "sigmoid": 11,
    "tanh": 12,
    "softplus": 13,
    "sqrtsoftplus": 14,
    "laplace": 15,
    "identity": 16,
    "xielu": 17,
}
_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x: tl.tensor) -> tl.tensor:
    small = tl.abs(x) < 0.1
    square = x * x
    series = x * (1.0 - square * (0.3333333333 - square * (0.1333333333 - square * 0.0539682540)))
    power = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - power) / (1.0 + power)
    return tl.where(small, series, tl.where(x < 0, -large, large))


@triton.jit  # type: ignore[untyped-decorator]
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x)) of float32 values."""
    power = tl.exp(tl.minimum(x, 20.0))
    series = power * (1.0 - power * (0.5 - power * 0.3333333333))
    return tl.where(x > 20.0, x, tl.where(power < 1e-3, series, tl.log(1.0 + power)))


@triton.jit  # type: ignore[untyped-decorator]
def _expm1(x: tl.tensor) -> tl.tensor:
    series = x * (1.0 + x * (0.5 + x * (0.1666666667 + x * (0.0416666667 + x * 0.0083333333))))
    return tl.where(tl.abs(x) < 0.1, series, tl.exp(x) - 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def activate(x: tl.tensor, KIND: tl.constexpr) -> tl.tensor:  # noqa: C901 - one branch a kind
    """The activation of float32 values; KIND as in _KINDS, without xielu."""
    if KIND == 0:
        result = x * tl.sigmoid(x)
    elif KIND == 1:
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 2:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        result = x * tl.sigmoid(2.0 * inner)  # 0.5 * (1 + tanh(u)) == sigmoid(2 u)
    elif KIND == 3:
        clipped = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
        result = tl.minimum(tl.maximum(clipped, -10.0), 10.0)
    elif KIND == 4:
        result = x * tl.sigmoid(1.702 * x)
    elif KIND == 5:
        result = tl.maximum(x, 0.0)
    elif KIND == 6:
        result = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif KIND == 7:
        result = tl.minimum(tl.maximum(x, 0.0), 6.0)
    elif KIND == 8:
        result = tl.where(x > 0, x, 0.01 * x)
    elif KIND == 9:
        result = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    elif KIND == 10:
        result = x * _tanh(softplus(x))
    elif KIND == 11:
        result = tl.sigmoid(x)
    elif KIND == 12:
        result = _tanh(x)
    elif KIND == 13:
        result = softplus(x)
    elif KIND == 14:
        result = tl.sqrt(softplus(x))
    elif KIND == 15:
        result = 0.5 * (1.0 + tl.erf((x - 0.707107) * 2.5066305664))  # 1 / (0.282095 * sqrt(2))
    else:
        result = x
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _activation_kernel(
    out: tl.tensor,
    x: tl.tensor,
    parameters: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    size: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    let_later_start(PDL)
    wait_for_earlier(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    value = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if KIND == 17:
        alpha_p = tl.load(parameters).to(tl.float32)
        alpha_n = tl.load(parameters + 1).to(tl.float32)
        beta = tl.load(parameters + 2).to(tl.float32)
        negative = (_expm1(tl.minimum(value, -1e-6)) - value) * alpha_n
        result = tl.where(value > 0, alpha_p * value * value, negative) + beta * value
    else:
        result = activate(value, KIND)
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gated_kernel(
    out: tl.tensor,
    gate_up: tl.tensor,
    out_stride: tl.tensor,
    gate_up_stride: tl.tensor,
    size: tl.tensor,
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    let_later_start(PDL)
    wait_for_earlier(PDL)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    row = gate_up + token * gate_up_stride
    gate = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + size + columns, mask=inside, other=0.0).to(tl.float32)
    if LIMIT is not None:
        gate = tl.where(gate > LIMIT, LIMIT, gate)  # keeps NaN, as torch does
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    if ALPHA is not None:  # noqa: SIM108 - a branch of the compiler
        result = gate * tl.sigmoid(ALPHA * gate) * (up + 1.0)
    else:
        result = activate(gate, KIND) * up
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


def activation(out: torch.Tensor, x: torch.Tensor, kind: str, parameters: torch.Tensor | None) -> None:
    """Triton back end of `ops.activation`."""
    check_activation(out, x, kind, parameters)
    check_inner_contiguous(out=out, x=x)
    number = activation_number(kind)
    num_tokens, size = out.shape
    if num_tokens == 0:
        return
    given = x if parameters is None else parameters.contiguous()
    _activation_kernel[(num_tokens, ceil_div(size, _BLOCK))](
        out,
        x,
        given,
        out.stride(0),
        x.stride(0),
        size,
        KIND=number,
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(x.device),
    )


def gated_activation(
    out: torch.Tensor, gate_up: torch.Tensor, kind: str, limit: float | None, alpha: float | None
) -> None:
    """Triton back end of `ops.gated_activation`."""
    check_gated(out, gate_up)
    check_inner_contiguous(out=out, gate_up=gate_up)
    number = activation_number(kind)
    check_gate_options(kind, limit, alpha)
    num_tokens, size = out.shape
    if num_tokens == 0:
        return
    _gated_kernel[(num_tokens, ceil_div(size, _BLOCK))](
        out,
        gate_up,
        out.stride(0),
        gate_up.stride(0),
        size,
        KIND=number,
        LIMIT=limit,
        ALPHA=alpha,
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(out.device),
    )


def activation_number(kind: str) -> int:
    """KIND of `activate`; raises `InvalidArgument` for an unknown name."""
    try:
        return _KINDS[kind]
    except KeyError:
        raise InvalidArgument("kind", f"expected one of {', '.join(_KINDS)}, got {kind!r}") from None
