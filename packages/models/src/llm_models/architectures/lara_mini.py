"""Owns the spec of Lara Mini: delta rule, attention with a window, attention without positions, experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import FULL, LINEAR, hybrid_kinds, hybrid_names
from llm_models.architectures.layouts import SLIDING, with_defaults
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.delta_rule import DeltaRule
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, rows, stacked
from llm_models.spec import DecoderSpec

_NAMES = hybrid_names(
    LLAMA_NAMES,
    {
        "linear_attn.in_proj": rows(
            "delta.query", "delta.key", "delta.value", "delta.gate", "delta.beta", "delta.decay"
        ),
        "linear_attn.conv1d": rows("delta.conv_query", "delta.conv_key", "delta.conv_value"),
        "linear_attn.dt_bias": "delta.step_bias",
        "linear_attn.A_log": "delta.A_log",
        "linear_attn.out_norm": "delta.norm",
        "linear_attn.out_proj": "delta.output",
        "mlp.gate": "mlp.router",
        "mlp.experts.gate_up_proj": rows(
            "mlp.experts.{e}.gate.weight", "mlp.experts.{e}.up.weight", stacked=True
        ),
        "mlp.experts.down_proj": stacked("mlp.experts.{e}.down.weight"),
        "mlp.shared_expert.gate_proj": "mlp.shared.gate",
        "mlp.shared_expert.up_proj": "mlp.shared.up",
        "mlp.shared_expert.down_proj": "mlp.shared.down",
    },
)
_PATTERN = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)


@architecture("LaraMiniForCausalLM")
def lara_mini(config: Mapping[str, Any]) -> DecoderSpec:
    """Lara Mini."""
    config = with_defaults(
        config,
        num_key_value_heads=4,
        head_dim=128,
        sliding_window=512,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    )
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    windowed = attention(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNorm(norm=norm),
        sliding_window=reader.positive_int("sliding_window"),
    )
    full = replace(windowed, rope=None, sliding_window=None)
    mixers: dict[str, BlockSpec] = {FULL: full, SLIDING: windowed, LINEAR: _delta_rule(config)}
    moe = _moe(config)
    count = reader.positive_int("num_hidden_layers")
    default = [_PATTERN[index % len(_PATTERN)] for index in range(count)]
    layers = [
        Layer((Branch(blocks=(mixers[kind],), pre=norm, name="mixer"), Branch(blocks=(moe,), pre=norm)))
        for kind in hybrid_kinds(config, default, (FULL, SLIDING, LINEAR))
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES, tied=True)


def _delta_rule(config: Mapping[str, Any]) -> DeltaRule:
    reader = ConfigReader(config)
    if reader.activation() != "silu":
        raise UnsupportedConfig("hidden_act", "the delta rule's convolution has silu only")
    return DeltaRule(
        num_key_heads=reader.positive_int("linear_num_key_heads", 8),
        num_value_heads=reader.positive_int("linear_num_value_heads", 16),
        key_size=reader.positive_int("linear_key_head_dim", 128),
        value_size=reader.positive_int("linear_value_head_dim", 128),
        conv_width=reader.positive_int("linear_conv_kernel_dim", 4),
        norm=rms_norm(config),
    )


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    router = Router(
        top_k=reader.positive_int("num_experts_per_tok", 4),
        renormalize=reader.boolean("norm_topk_prob", True),
        in_float32=True,
    )
    return MoE(
        num_experts=reader.positive_int("num_experts", 128),
        expert_size=reader.positive_int("moe_intermediate_size"),
        activation=reader.activation(),
        router=router,
        shared=replace(gated_mlp(config, field="shared_expert_intermediate_size"), name="shared"),
    )
