"""How experts are chosen from the router's logits, as plain data; knows nothing about any back end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from llm_kernels.errors import InvalidArgument

Scoring: TypeAlias = Literal[
    "softmax", "sigmoid", "sqrtsoftplus", "softmax_after", "sigmoid_after", "sparsemixer"
]
GroupScore: TypeAlias = Literal["max", "top2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """The options of `ops.route_experts`; see there."""

    top_k: int
    scoring: Scoring
    renormalize: bool
    groups: int | None
    top_groups: int | None
    group_score: GroupScore
    scale: float
    renormalize_eps: float
    jitter_eps: float

    def check(self, logits_TN: torch.Tensor, bias_N: torch.Tensor | None) -> None:
        """Raises `InvalidArgument` where the options, the logits and the bias do not fit together."""
        if logits_TN.ndim != 2 or not logits_TN.is_floating_point():
            found = f"{logits_TN.dtype} {list(logits_TN.shape)}"
            raise InvalidArgument("logits_TN", f"expected floats [T, N], got {found}")
        num_experts = logits_TN.shape[1]
        if not 1 <= self.top_k <= num_experts:
            raise InvalidArgument("top_k", f"expected 1..{num_experts}, got {self.top_k}")
        if self.scoring not in get_args(Scoring):
            raise InvalidArgument(
                "scoring", f"expected one of {', '.join(get_args(Scoring))}, got {self.scoring!r}"
            )
        if bias_N is not None and (bias_N.shape != (num_experts,) or bias_N.device != logits_TN.device):
            found = f"{list(bias_N.shape)} on {bias_N.device}"
            raise InvalidArgument("bias", f"expected [{num_experts}] on {logits_TN.device}, got {found}")
        if self.scoring == "sparsemixer" and (bias_N is not None or self.renormalize or self.scale != 1.0):
            raise InvalidArgument("scoring", "sparsemixer takes no bias, renormalize or scale")
        self._check_groups(num_experts)

    def _check_groups(self, num_experts: int) -> None:
        if self.groups is None:
            if self.top_groups is not None:
                raise InvalidArgument("top_groups", "goes with groups")
            return
        if self.scoring.endswith("_after") or self.scoring == "sparsemixer":
            raise InvalidArgument("groups", f"the scoring {self.scoring} has no groups")
        if self.groups < 1 or num_experts % self.groups != 0:
            raise InvalidArgument("groups", f"{num_experts} experts do not split into {self.groups} groups")
        if self.top_groups is None or not 1 <= self.top_groups <= self.groups:
            raise InvalidArgument("top_groups", f"expected 1..{self.groups}, got {self.top_groups}")
        size = num_experts // self.groups
        if self.top_k > self.top_groups * size:
            raise InvalidArgument(
                "top_k", f"more than the {self.top_groups * size} experts of the top groups"
            )
        if self.group_score not in get_args(GroupScore):
            raise InvalidArgument("group_score", f"expected max or top2, got {self.group_score!r}")
        if self.group_score == "top2" and size < 2:
            raise InvalidArgument("group_score", "top2 needs groups of two experts or more")
