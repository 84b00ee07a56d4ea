"""Owns sharing a model out among ranks by its class's own plan; knows nothing about attention.

The plan names a style for each linear and each stack of experts. What it does not name stays whole on each
rank.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from llm_distributed import DeviceMesh
from llm_kernels import ops
from torch import Tensor, nn

from llm_models.errors import ShardingError

_WHOLE = frozenset(
    {
        "replicate",
        "replicated_with_grad_allreduce",
        "mla_kv_a_proj",
        "local_params",
        "embedding_rowwise",
        "embedding_colwise",
    }
)
_HEADS = ("num_attention_heads", "num_key_value_heads")


def shard_by_plan(model: Any, mesh: DeviceMesh) -> None:
    """Leaves each rank its part of the weights, in place, and adds the collectives.

    Args:
        model: Whole, with its weights on any device.
        mesh: The ranks along axis `tp`.

    Raises:
        ShardingError: The class has no plan, the plan has a style unknown here, or a size does not divide.
    """
    plan = dict(getattr(model, "_tp_plan", None) or {})
    if not plan:
        raise ShardingError("architectures", f"{type(model).__name__} has no plan for tensor parallelism")
    ranks, text = mesh.size("tp"), model.config.get_text_config()
    for field in _HEADS:
        heads = getattr(text, field, None)
        if isinstance(heads, int) and heads % ranks:
            raise ShardingError(field, f"{heads} heads cannot be shared out among {ranks} ranks")
    for name, module in list(model.named_modules()):
        style = plan.get(_pattern(name))
        if style is not None and style not in _WHOLE:
            _shard_module(name, module, style, mesh)
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            own = plan.get(_pattern(f"{name}.{leaf}"))
            if own is not None and own not in _WHOLE:
                _replace(module, leaf, _part(f"{name}.{leaf}", parameter, own, mesh))


def _shard_module(name: str, module: nn.Module, style: str, mesh: DeviceMesh) -> None:
    if style in ("moe_tp_experts", "all_reduce"):
        _set_forward(module, _summed(module.forward, mesh))
        return
    if not isinstance(module, nn.Linear):
        raise ShardingError("tp_plan", f"{name} has style {style!r} but is a {type(module).__name__}")
    bias = module.bias
    _replace(module, "weight", _part(f"{name}.weight", module.weight, style, mesh))
    if bias is not None and not style.startswith("rowwise"):
        _replace(module, "bias", _part(f"{name}.bias", bias, style, mesh))
    module.out_features, module.in_features = module.weight.shape
    if style in ("colwise_gather_output", "colwise_rep"):
        _set_forward(module, _gathered(module, mesh))
    elif style.startswith("rowwise"):
        _set_forward(module, _partial(module, mesh, split=style != "rowwise"))


def _part(name: str, whole: Tensor, style: str, mesh: DeviceMesh) -> Tensor:
    """This rank's part of a weight [..., out, in] or a bias [out]."""
    match style:
        case "colwise" | "colwise_gather_output" | "colwise_rep":
            dim, pieces = max(whole.dim() - 2, 0), 1
        case "rowwise" | "rowwise_split_input" | "rowwise_rep" if whole.dim() > 1:
            dim, pieces = whole.dim() - 1, 1
        case "packed_colwise" if whole.dim() > 1:
            dim, pieces = whole.dim() - 2, 2
        case _:
            raise ShardingError("tp_plan", f"{name} has style {style!r}, which is unknown here")
    ranks, rank = mesh.size("tp"), mesh.rank("tp")
    if whole.shape[dim] % (ranks * pieces):
        reason = f"dimension {dim} of {list(whole.shape)} cannot be shared out among {ranks} ranks"
        raise ShardingError("tp_plan", f"{name}: {reason}")
    return torch.cat([piece.chunk(ranks, dim)[rank] for piece in whole.chunk(pieces, dim)], dim)


def _gathered(module: nn.Linear, mesh: DeviceMesh) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return mesh.all_gather(ops.linear(x, module.weight, module.bias), "tp")

    return forward


def _partial(module: nn.Linear, mesh: DeviceMesh, *, split: bool) -> Callable[[Tensor], Tensor]:
    ranks, rank = mesh.size("tp"), mesh.rank("tp")

    def forward(x: Tensor) -> Tensor:
        own = x.chunk(ranks, -1)[rank] if split else x
        out = mesh.all_reduce(ops.linear(own, module.weight).contiguous(), "tp")
        return out if module.bias is None else out + module.bias

    return forward


def _summed(forward: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    def summed(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if not isinstance(output, Tensor):
            raise ShardingError("tp_plan", f"experts return {type(output).__name__}, not one tensor")
        return mesh.all_reduce(output.contiguous(), "tp")

    return summed


def _set_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__["forward"] = forward


def _replace(module: nn.Module, name: str, part: Tensor) -> None:
    module._parameters[name] = nn.Parameter(part.contiguous(), requires_grad=False)


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
