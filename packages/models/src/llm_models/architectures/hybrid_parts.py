"""Owns what hybrids of attention and Mamba layers share: their mixers' fields and the kinds of their layers.

Knows nothing about any family, weights or the runtime.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_models.blocks.mamba2 import GatedNorm, Mamba2
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import Names, Target, rows

FULL, LINEAR = "full_attention", "linear_attention"

# Transformers renamed the kinds of layers; files on the Hub have either.
_OLD_KINDS = {"attention": FULL, "mamba": LINEAR, "mamba2": LINEAR, "conv": "conv"}

MAMBA2_NAMES: Mapping[str, Target] = {
    "mamba.in_proj": rows("mamba.gate", "mamba.x", "mamba.B", "mamba.C", "mamba.step"),
    "mamba.conv1d": rows("mamba.conv_x", "mamba.conv_B", "mamba.conv_C"),
    "mamba.dt_bias": "mamba.step_bias",
    "mamba.A_log": "mamba.A_log",
    "mamba.D": "mamba.D",
    "mamba.norm": "mamba.norm",
    "mamba.out_proj": "mamba.output",
}
"""Names of a Mamba 2 mixer called `mamba`."""


def hybrid_names(names: Names, inside: Mapping[str, Target], final_norm: str = "model.norm") -> Names:
    """Names of layers whose first norm comes before either kind of mixer."""
    return names.but({"input_layernorm": "mixer.norm", **inside}, top={final_norm: "final_norm"})


def mamba2(config: Mapping[str, Any], *, inner_size: int | None = None) -> Mamba2:
    """Reads a Mamba 2 mixer from the fields `mamba_*` that most hybrids have.

    Args:
        config: The model config.
        inner_size: Channels inside; None: `mamba_expand * hidden_size`.

    Raises:
        ConfigError: Heads and channels do not fit together.
    """
    reader = ConfigReader(config)
    inner = inner_size or reader.positive_int("mamba_expand", 2) * reader.positive_int("hidden_size")
    heads = reader.positive_int("mamba_n_heads", 128)
    size = inner // heads
    if config.get("mamba_d_head", "auto") != "auto":
        size = reader.positive_int("mamba_d_head")
    if heads * size != inner:
        raise ConfigError("mamba_n_heads", f"{heads} heads of {size} channels are not {inner} channels")
    low, high = reader.floats("time_step_limit", (0.0, math.inf))
    if reader.activation() != "silu":
        raise UnsupportedConfig("hidden_act", "a state space mixer has silu only")
    return Mamba2(
        num_heads=heads,
        head_size=size,
        state_size=reader.positive_int("mamba_d_state", 256),
        num_groups=reader.positive_int("mamba_n_groups", 1),
        conv_width=reader.positive_int("mamba_d_conv", 4),
        conv_bias=reader.boolean("mamba_conv_bias", True),
        bias=reader.boolean("mamba_proj_bias", False),
        norm=GatedNorm(eps=reader.positive_float("rms_norm_eps", 1e-5)),
        step_limit=(low, high),
    )


def hybrid_kinds(
    config: Mapping[str, Any], default: Sequence[str] | None, known: Sequence[str] = (FULL, LINEAR)
) -> list[str]:
    """The kind of every layer, under today's names.

    Args:
        config: The model config, with `layer_types` or `layers_block_type`.
        default: Where it has neither; None: it must.
        known: What is supported.

    Raises:
        ConfigError: There is nothing to go by, or not one entry a layer.
        UnsupportedConfig: A layer is of another kind.
    """
    reader = ConfigReader(config)
    field = "layer_types" if reader.has("layer_types") else "layers_block_type"
    kinds = list(default) if default is not None and not reader.has(field) else reader.sequence(field)
    kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    count = reader.positive_int("num_hidden_layers", len(kinds))
    if len(kinds) != count:
        raise ConfigError(field, f"has {len(kinds)} entries for {count} layers")
    for kind in kinds:
        if kind not in known:
            raise UnsupportedConfig(field, f"{kind!r} is none of {', '.join(known)}")
    return kinds
