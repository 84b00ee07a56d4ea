"""Gated activations in Triton; knows nothing about models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llm_kernels.checks import check_gated, check_inner_contiguous
from llm_kernels.errors import InvalidArgument

_KINDS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _gated_kernel(
    out: tl.tensor,
    gate_up: tl.tensor,
    out_stride: tl.tensor,
    gate_up_stride: tl.tensor,
    size: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    row = gate_up + token * gate_up_stride
    gate = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + size + columns, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        activated = gate * tl.sigmoid(gate)
    elif KIND == 1:
        activated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        activated = gate * tl.sigmoid(2.0 * inner)  # 0.5 * (1 + tanh(u)) == sigmoid(2 u)
    result = (activated * up).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + columns, result, mask=inside)


def gated_activation(out: torch.Tensor, gate_up: torch.Tensor, kind: str) -> None:
    """Triton back end of `ops.gated_activation`."""
    check_gated(out, gate_up)
    check_inner_contiguous(out=out, gate_up=gate_up)
    if kind not in _KINDS:
        raise InvalidArgument("kind", f"expected silu, gelu or gelu_tanh, got {kind!r}")
    num_tokens, size = out.shape
    if num_tokens == 0:
        return
    _gated_kernel[(num_tokens, triton.cdiv(size, _BLOCK))](
        out, gate_up, out.stride(0), gate_up.stride(0), size, KIND=_KINDS[kind], BLOCK=_BLOCK, num_warps=4
    )
