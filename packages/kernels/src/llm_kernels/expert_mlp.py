"""The weights and options of a mixture of expert MLPs, as plain data; knows nothing about any back end."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_kernels.checks import check_dtype, check_shape
from llm_kernels.errors import InvalidArgument
from llm_kernels.fp8_format import E4M3, GROUP, num_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMlp:
    """The arguments of `ops.moe` that do not change from call to call; see there."""

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    activation: str
    gated: bool
    limit: float | None
    alpha: float | None
    weight_input: bool
    zero_experts: int
    up_scale: torch.Tensor | None = None
    down_scale: torch.Tensor | None = None

    def check(
        self, out_TE: torch.Tensor, x_TE: torch.Tensor, weights_TK: torch.Tensor, ids_TK: torch.Tensor
    ) -> None:
        """Raises `InvalidArgument` where shapes, dtypes or options do not fit; reads no device memory."""
        device = x_TE.device
        if x_TE.ndim != 2:
            raise InvalidArgument("x_TE", f"expected [T, E], got {list(x_TE.shape)}")
        num_tokens, size = x_TE.shape
        check_shape("out_TE", out_TE, (num_tokens, size), device)
        check_dtype("out_TE", out_TE, x_TE.dtype)
        if ids_TK.ndim != 2:
            raise InvalidArgument("ids_TK", f"expected [T, K], got {list(ids_TK.shape)}")
        check_shape("ids_TK", ids_TK, (num_tokens, ids_TK.shape[1]), device)
        check_dtype("ids_TK", ids_TK, torch.int64)
        check_shape("weights_TK", weights_TK, tuple(ids_TK.shape), device)
        if self.down.ndim != 3:
            raise InvalidArgument("down", f"expected [N, E, I], got {list(self.down.shape)}")
        num_experts, _, inner = self.down.shape
        rows = 2 * inner if self.gated else inner
        check_shape("down", self.down, (num_experts, size, inner), device)
        check_shape("up", self.up, (num_experts, rows, size), device)
        self._check_weight("up", self.up, self.up_scale, x_TE.dtype)
        self._check_weight("down", self.down, self.down_scale, x_TE.dtype)
        if self.up_bias is not None:
            check_shape("up_bias", self.up_bias, (num_experts, rows), device)
        if self.down_bias is not None:
            check_shape("down_bias", self.down_bias, (num_experts, size), device)
        self._check_options()

    def _check_weight(
        self, field: str, weight_NOI: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        check_dtype(field, weight_NOI, dtype if scale is None else E4M3)
        if scale is None:
            return
        num_experts, outputs, inputs = weight_NOI.shape
        blocks = (num_experts, num_groups(outputs), num_groups(inputs))
        check_shape(
            f"{field}_scale", scale, blocks if scale.ndim == 3 else (num_experts, outputs), weight_NOI.device
        )
        check_dtype(f"{field}_scale", scale, torch.float32)
        if field == "up" and self.gated and scale.ndim == 3 and outputs % (2 * GROUP):
            raise InvalidArgument("up_scale", f"gate and up of {outputs // 2} rows do not end with a block")

    def _check_options(self) -> None:
        if not self.gated and (self.limit is not None or self.alpha is not None):
            raise InvalidArgument("gated", "limit and alpha need a gated activation")
        if self.zero_experts < 0:
            raise InvalidArgument("zero_experts", f"expected 0 or more, got {self.zero_experts}")
        if self.weight_input and self.zero_experts:
            raise InvalidArgument("weight_input", "does not go with zero_experts")
