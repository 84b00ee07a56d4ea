"""The expert ops: matrix products whose weights depend on the row, and mixtures of expert MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from llm_kernels.backends import cpp_backend, torch_backend, triton_backends
from llm_kernels.expert_mlp import ExpertMlp
from llm_kernels.ops.activation import ActivationKind
from llm_kernels.reference import experts as reference_experts
from llm_kernels.registry import PLAIN, Op

_GroupedLinear: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None
]
_Moe: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, ExpertMlp], None]

GROUPED_LINEAR: Op[_GroupedLinear] = Op(
    "grouped_linear",
    [torch_backend(reference_experts.grouped_linear), *triton_backends("experts", "grouped_linear")],
    default_size=4096,
)
FP8_EXPERTS = frozenset({"fp8_experts"})
"""The feature of experts whose weights are e4m3 with scales."""

MOE: Op[_Moe] = Op(
    "moe",
    [
        torch_backend(reference_experts.moe),
        cpp_backend("experts", "moe", is_for_invariance=True),
        *triton_backends("experts", "moe", features=FP8_EXPERTS),
        *triton_backends("invariant_experts", "moe", features=FP8_EXPERTS, is_for_invariance=True),
    ],
    default_size=4096,
)


def grouped_linear(
    out_PO: torch.Tensor,
    x_PI: torch.Tensor,
    weight_NOI: torch.Tensor,
    expert_ids: torch.Tensor,
    bias_NO: torch.Tensor | None = None,
) -> None:
    """Write `weight[expert_ids[p]] @ x[p] + bias[expert_ids[p]]` into row p of `out`; in any order of rows.

    Args:
        out_PO: [P, O], dtype of `x`.
        x_PI: [P, I].
        weight_NOI: [N, O, I], dtype of `x`.
        expert_ids: int64 [P], -1..N-1; a row with -1 becomes zeros.
        bias_NO: [N, O], any float dtype, or None.

    Raises:
        InvalidArgument: Shapes or dtypes that do not fit; on the CPU also an id out of range. On a GPU a row
            with such an id becomes zeros.
    """
    grouped = GROUPED_LINEAR.pick(x_PI.device, x_PI.dtype, x_PI.shape[-1])
    grouped(out_PO, x_PI, weight_NOI, expert_ids, bias_NO)


def moe(
    out_TE: torch.Tensor,
    x_TE: torch.Tensor,
    weights_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    activation: ActivationKind = "silu",
    gated: bool = True,
    limit: float | None = None,
    alpha: float | None = None,
    weight_input: bool = False,
    zero_experts: int = 0,
    up_scale: torch.Tensor | None = None,
    down_scale: torch.Tensor | None = None,
) -> None:
    """Write the weighted sum of the chosen experts' outputs, `sum_k weights[t, k] * mlp[ids[t, k]](x[t])`.

    Products are accumulated in float32 and rounded to the dtype of `x` between the two layers; the sum over
    the experts is float32. `out` may be `x`. No host synchronisation on a GPU, so a CUDA graph can hold it.

    Args:
        out_TE: [T, E], dtype of `x`.
        x_TE: [T, E].
        weights_TK: [T, K], as `route_experts` returns them.
        ids_TK: int64 [T, K]: 0..N-1; -1 takes part in nothing (an expert of another rank, a padding token);
            N..N + zero_experts - 1 are zero experts. On a GPU ids are not checked; others count as -1.
        up: [N, 2 * I, E] with the gate's rows first, or [N, I, E] when not `gated`; dtype of `x`. gpt-oss
            stores gate and up rows in turn and input before output: reorder at load.
        down: [N, E, I], dtype of `x`.
        up_bias: [N, 2 * I] or [N, I], or None.
        down_bias: [N, E] or None.
        activation: See `ops.activation`; not "xielu".
        gated: Whether `up` holds a gate. NemotronH: False, with "relu2".
        limit: See `ops.gated_activation`.
        alpha: See `ops.gated_activation`.
        weight_input: The weight multiplies the expert's input instead of its output (Llama 4).
        zero_experts: So many experts past the last one return their input (LongCat).
        up_scale: Where `up` is float8_e4m3fn, its float32 scales: one an output, [N, 2 * I] (or [N, I]), or
            one a block of 128 x 128, [N, 2 * I / 128, ceil(E / 128)]. None: it is not quantized.
        down_scale: The same of `down`: [N, E] or [N, ceil(E / 128), ceil(I / 128)].

    Raises:
        InvalidArgument: Shapes, dtypes or options that do not fit; on the CPU also an id out of range.
    """
    mlp = ExpertMlp(
        up=up,
        down=down,
        up_bias=up_bias,
        down_bias=down_bias,
        activation=activation,
        gated=gated,
        limit=limit,
        alpha=alpha,
        weight_input=weight_input,
        zero_experts=zero_experts,
        up_scale=up_scale,
        down_scale=down_scale,
    )
    is_quantized = up_scale is not None or down_scale is not None
    features = FP8_EXPERTS if is_quantized else PLAIN
    MOE.pick(x_TE.device, x_TE.dtype, x_TE.shape[-1], features)(out_TE, x_TE, weights_TK, ids_TK, mlp)
