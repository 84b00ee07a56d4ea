"""Owns the spec of Jamba: Mamba layers, some attention layers, experts in some of both."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import hybrid_names
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mamba import Mamba
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, rows
from llm_models.spec import DecoderSpec

_NAMES = hybrid_names(
    LLAMA_NAMES,
    {
        "mamba.in_proj": rows("mamba.x", "mamba.gate"),
        "mamba.conv1d": "mamba.conv",
        "mamba.x_proj": "mamba.select",
        "mamba.dt_proj": "mamba.step",
        "mamba.A_log": "mamba.A_log",
        "mamba.D": "mamba.D",
        "mamba.out_proj": "mamba.output",
        "mamba.dt_layernorm": "mamba.step_norm",
        "mamba.b_layernorm": "mamba.B_norm",
        "mamba.c_layernorm": "mamba.C_norm",
        "pre_ff_layernorm": "mlp.norm",
        "feed_forward.gate_proj": "mlp.gate",
        "feed_forward.up_proj": "mlp.up",
        "feed_forward.down_proj": "mlp.down",
        "feed_forward.router": "mlp.router",
        "feed_forward.experts.{e}.gate_proj": "mlp.experts.{e}.gate",
        "feed_forward.experts.{e}.up_proj": "mlp.experts.{e}.up",
        "feed_forward.experts.{e}.down_proj": "mlp.experts.{e}.down",
    },
    "model.final_layernorm",
)


@architecture("JambaForCausalLM")
def jamba(config: Mapping[str, Any]) -> DecoderSpec:
    """Jamba 1 to 1.7: attention without positions."""
    config = with_defaults(config, num_key_value_heads=8, max_position_embeddings=262144)
    reader, norm = ConfigReader(config), rms_norm(config)
    full, state_space = replace(attention(config), rope=None), _mamba(config)
    dense, experts = gated_mlp(config), reader.positive_int("num_experts", 16)
    moe = MoE(
        num_experts=experts,
        expert_size=dense.intermediate_size,
        activation=dense.activation,
        router=Router(top_k=reader.positive_int("num_experts_per_tok", 2)),
    )
    attention_layers = _pattern(reader, "attn_layer_period", 8, "attn_layer_offset", 4)
    expert_layers = _pattern(reader, "expert_layer_period", 2, "expert_layer_offset", 1)
    layers = []
    for is_full, has_experts in zip(attention_layers, expert_layers, strict=True):
        mixer: BlockSpec = full if is_full else state_space
        feed_forward: BlockSpec = moe if has_experts and experts > 1 else dense
        branches = (
            Branch(blocks=(mixer,), pre=norm, name="mixer"),
            Branch(blocks=(feed_forward,), pre=norm),
        )
        layers.append(Layer(branches))
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _pattern(reader: ConfigReader, period: str, every: int, offset: str, first: int) -> list[bool]:
    every, first = reader.positive_int(period, every), reader.whole_number(offset, first)
    return [index % every == first for index in range(reader.positive_int("num_hidden_layers"))]


def _mamba(config: Mapping[str, Any]) -> Mamba:
    reader = ConfigReader(config)
    width = reader.positive_int("hidden_size")
    rank = config.get("mamba_dt_rank", "auto")
    return Mamba(
        inner_size=reader.positive_int("mamba_expand", 2) * width,
        state_size=reader.positive_int("mamba_d_state", 16),
        step_rank=math.ceil(width / 16) if rank == "auto" else reader.positive_int("mamba_dt_rank"),
        conv_width=reader.positive_int("mamba_d_conv", 4),
        activation=reader.activation(),
        conv_bias=reader.boolean("mamba_conv_bias", True),
        bias=reader.boolean("mamba_proj_bias", False),
        select_norm=rms_norm(config),
    )
