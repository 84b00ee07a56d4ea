"""Owns what families of mixtures of experts share: names of experts, sigmoid routers, dense first layers.

Knows nothing about any family, weights or the runtime.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from llm_models.architectures.common import gated_mlp
from llm_models.blocks.layer import BlockSpec
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import Target, rows, stacked

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""The usual names of an MLP's gate, up and down."""


def expert_names(
    place: str = "mlp",
    *,
    router: str = "gate",
    parts: tuple[str, str, str] = PROJECTIONS,
    shared: str | None = None,
) -> dict[str, Target]:
    """Names of a router and of experts that each have tensors of their own, below `place` in a layer.

    Args:
        place: The mixture.
        router: The router in it.
        parts: An expert's gate, up and down.
        shared: The shared MLP in it, whose projections have the usual names.
    """
    names: dict[str, Target] = {f"{place}.{router}": "mlp.router"}
    for part, ours in zip(parts, ("gate", "up", "down"), strict=True):
        names[f"{place}.experts.{{e}}.{part}"] = f"mlp.experts.{{e}}.{ours}"
    if shared is not None:
        names |= shared_names(f"{place}.{shared}")
    return names


def shared_names(place: str) -> dict[str, Target]:
    """Names of a shared MLP at `place` in a layer."""
    return {
        f"{place}.{part}": f"mlp.shared.{ours}"
        for part, ours in zip(PROJECTIONS, ("gate", "up", "down"), strict=True)
    }


def stacked_names(gate_up: str, down: str, *, transposed: bool = False) -> dict[str, Target]:
    """Names of tensors that hold the weights of all experts, gate and up below each other."""
    sides = ("mlp.experts.{e}.gate.weight", "mlp.experts.{e}.up.weight")
    return {
        gate_up: rows(*sides, stacked=True, transposed=transposed),
        down: stacked("mlp.experts.{e}.down.weight", transposed=transposed),
    }


def sigmoid_router(config: Mapping[str, Any], *, renormalize: bool = True) -> Router:
    """Reads the router of DeepSeek-V3, which many families share.

    Args:
        config: The model config.
        renormalize: Where `norm_topk_prob` does not say.
    """
    reader = ConfigReader(config)
    return Router(
        top_k=reader.positive_int("num_experts_per_tok"),
        scoring="sigmoid",
        correction=True,
        groups=reader.positive_int("n_group", 1),
        top_groups=reader.positive_int("topk_group", 1),
        renormalize=reader.boolean("norm_topk_prob", renormalize),
        scale=reader.positive_float("routed_scaling_factor", 1.0),
        in_float32=True,
    )


def shared_mlp(config: Mapping[str, Any], size: int, *, bias: bool = False) -> MLP | None:
    """The MLP beside the experts, `size` wide; None where that is 0."""
    if not size:
        return None
    return MLP(intermediate_size=size, activation=ConfigReader(config).activation(), bias=bias, name="shared")


def feed_forwards(config: Mapping[str, Any], moe: MoE, *, dense_layers: int = 0) -> list[BlockSpec]:
    """The feed-forward of every layer, dense or a mixture.

    `mlp_layer_types` names them; without it the first `first_k_dense_replace` layers are dense.

    Args:
        config: The model config.
        moe: The mixture.
        dense_layers: Where neither field is there.
    """
    reader = ConfigReader(config)
    count = reader.positive_int("num_hidden_layers")
    if reader.has("mlp_layer_types"):
        kinds = reader.sequence("mlp_layer_types")
        if len(kinds) != count:
            raise ConfigError("mlp_layer_types", f"has {len(kinds)} entries for {count} layers")
        for kind in kinds:
            if kind not in ("dense", "sparse"):
                raise UnsupportedConfig("mlp_layer_types", f"{kind!r} is neither dense nor sparse")
    else:
        first = reader.whole_number("first_k_dense_replace", dense_layers)
        kinds = ["dense" if layer < first else "sparse" for layer in range(count)]
    return choose(config, moe, (kind == "sparse" for kind in kinds))


def choose(config: Mapping[str, Any], moe: MoE, is_sparse: Iterable[bool]) -> list[BlockSpec]:
    """The mixture where `is_sparse`, else the dense MLP of `intermediate_size`."""
    sparse = list(is_sparse)
    if all(sparse):
        return [moe] * len(sparse)
    dense = gated_mlp(config)
    return [moe if here else dense for here in sparse]


def further_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Regular expressions of layers past the last, which predict several tokens at once and are not used."""
    reader = ConfigReader(config)
    count = reader.positive_int("num_hidden_layers")
    further = reader.whole_number("num_nextn_predict_layers", 1)
    return tuple(rf"model\.layers\.{count + index}\..*" for index in range(further))
