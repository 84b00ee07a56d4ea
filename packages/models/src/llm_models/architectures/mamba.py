"""Owns the specs of Mamba, FalconMamba and Mamba 2; knows nothing about weights or the runtime."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, rms_norm
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mamba import Mamba
from llm_models.blocks.mamba2 import GatedNorm, Mamba2
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import Names, rows
from llm_models.spec import DecoderSpec

# No positions anywhere: what a server may run is bounded by patience only.
_MAX_POSITIONS = 1 << 20

_NAMES = Names(
    top={"backbone.embeddings": "embedding", "backbone.norm_f": "final_norm", "lm_head": "head"},
    layer="backbone.layers.{i}",
    inside={
        "norm": "mamba.norm",
        "mixer.in_proj": rows("mamba.x", "mamba.gate"),
        "mixer.conv1d": "mamba.conv",
        "mixer.x_proj": "mamba.select",
        "mixer.dt_proj": "mamba.step",
        "mixer.A_log": "mamba.A_log",
        "mixer.D": "mamba.D",
        "mixer.out_proj": "mamba.output",
    },
)


@architecture("MambaForCausalLM")
def mamba(config: Mapping[str, Any]) -> DecoderSpec:
    """Mamba: nothing but state space mixers."""
    return _mamba(config, _mixer(config))


@architecture("FalconMambaForCausalLM")
def falcon_mamba(config: Mapping[str, Any]) -> DecoderSpec:
    """FalconMamba: Mamba with norms without weights on step sizes, B and C."""
    norm = Norm(eps=ConfigReader(config).positive_float("mixer_rms_eps", 1e-6), weight=False)
    return _mamba(config, replace(_mixer(config), select_norm=norm))


def _mixer(config: Mapping[str, Any]) -> Mamba:
    reader = ConfigReader(config)
    width = reader.positive_int("hidden_size")
    rank = config.get("time_step_rank", "auto")
    return Mamba(
        inner_size=reader.positive_int("intermediate_size", reader.positive_int("expand", 2) * width),
        state_size=reader.positive_int("state_size", 16),
        step_rank=math.ceil(width / 16) if rank == "auto" else reader.positive_int("time_step_rank"),
        conv_width=reader.positive_int("conv_kernel", 4),
        activation=reader.activation(),
        conv_bias=reader.boolean("use_conv_bias", True),
        bias=reader.boolean("use_bias", False),
    )


def _mamba(config: Mapping[str, Any], mixer: Mamba) -> DecoderSpec:
    norm = rms_norm(config, "layer_norm_epsilon", default=1e-5)
    layer = Layer((Branch(blocks=(mixer,), pre=norm),))
    return decoder(
        config,
        [layer] * ConfigReader(config).positive_int("num_hidden_layers"),
        final_norm=norm,
        names=_NAMES,
        tied=True,
        max_positions=_MAX_POSITIONS,
    )


@architecture("Mamba2ForCausalLM")
def mamba2(config: Mapping[str, Any]) -> DecoderSpec:
    """Mamba 2: nothing but state space mixers with heads."""
    reader = ConfigReader(config)
    norm = rms_norm(config, "layer_norm_epsilon", default=1e-5)
    low, high = reader.floats("time_step_limit", (0.0, math.inf))
    mixer = Mamba2(
        num_heads=reader.positive_int("num_heads", 128),
        head_size=reader.positive_int("head_dim", 64),
        state_size=reader.positive_int("state_size", 128),
        num_groups=reader.positive_int("n_groups", 8),
        conv_width=reader.positive_int("conv_kernel", 4),
        conv_bias=reader.boolean("use_conv_bias", True),
        bias=reader.boolean("use_bias", False),
        norm=GatedNorm(eps=norm.eps),
        step_limit=(low, high),
    )
    names = _NAMES.but(
        {
            "mixer.in_proj": rows("mamba.gate", "mamba.x", "mamba.B", "mamba.C", "mamba.step"),
            "mixer.conv1d": rows("mamba.conv_x", "mamba.conv_B", "mamba.conv_C"),
            "mixer.dt_bias": "mamba.step_bias",
            "mixer.norm": "mamba.norm",
        }
    )
    layer = Layer((Branch(blocks=(mixer,), pre=norm, name="mixer"),))
    return decoder(
        config,
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=names.but({"norm": "mixer.norm"}),
        max_positions=_MAX_POSITIONS,
    )
