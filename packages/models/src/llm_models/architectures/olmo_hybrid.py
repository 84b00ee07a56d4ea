"""Owns the spec of OLMo Hybrid: delta-rule layers with norms before, attention layers with norms after."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import FULL, LINEAR, hybrid_kinds
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.delta_rule import DeltaRule
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        "attention_layer_norm": "mixer.norm",
        "feedforward_layer_norm": "mlp.norm",
        "post_attention_layernorm": "attention.post_norm",
        "post_feedforward_layernorm": "mlp.post_norm",
        # As transformers saves attention layers, whose norm after the attention it renames too.
        "feedforward_layer_norm.weight": "attention.post_norm.weight",
        "linear_attn.q_proj": "delta.query",
        "linear_attn.k_proj": "delta.key",
        "linear_attn.v_proj": "delta.value",
        "linear_attn.g_proj": "delta.gate",
        "linear_attn.b_proj": "delta.beta",
        "linear_attn.a_proj": "delta.decay",
        "linear_attn.q_conv1d": "delta.conv_query",
        "linear_attn.k_conv1d": "delta.conv_key",
        "linear_attn.v_conv1d": "delta.conv_value",
        "linear_attn.dt_bias": "delta.step_bias",
        "linear_attn.A_log": "delta.A_log",
        "linear_attn.o_norm": "delta.norm",
        "linear_attn.o_proj": "delta.output",
    },
    without=("input_layernorm",),
)


@architecture("OlmoHybridForCausalLM")
def olmo_hybrid(config: Mapping[str, Any]) -> DecoderSpec:
    """OLMo Hybrid."""
    reader, norm, mlp = ConfigReader(config), rms_norm(config), gated_mlp(config)
    layers = {
        FULL: Layer((Branch(blocks=(_attention(config),), post=norm), Branch(blocks=(mlp,), post=norm))),
        LINEAR: Layer(
            (Branch(blocks=(_delta_rule(reader),), pre=norm, name="mixer"), Branch(blocks=(mlp,), pre=norm))
        ),
    }
    count = reader.positive_int("num_hidden_layers")
    kinds = hybrid_kinds(config, [FULL if index % 4 == 3 else LINEAR for index in range(count)])
    return decoder(config, [layers[kind] for kind in kinds], final_norm=norm, names=_NAMES)


def _attention(config: Mapping[str, Any]) -> Attention:
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    # Without a base there is no rope.
    has_base = reader.has("rope_theta") or (section is not None and section.has("rope_theta"))
    rope = mixer.rope if has_base else None
    return replace(mixer, rope=rope, qk_norm=QKNorm(norm=rms_norm(config), over="all"))


def _delta_rule(reader: ConfigReader) -> DeltaRule:
    if reader.activation() != "silu":
        raise UnsupportedConfig("hidden_act", "the delta rule's convolution has silu only")
    heads = reader.positive_int("num_attention_heads")
    key_heads = reader.positive_int("linear_num_key_heads", heads)
    default_size = int(0.75 * reader.positive_int("hidden_size") / key_heads)
    key_size = reader.positive_int("linear_key_head_dim", default_size)
    return DeltaRule(
        num_key_heads=key_heads,
        num_value_heads=reader.positive_int("linear_num_value_heads", heads),
        key_size=key_size,
        value_size=reader.positive_int("linear_value_head_dim", 2 * key_size),
        conv_width=reader.positive_int("linear_conv_kernel_dim", 4),
        norm=Norm(eps=1e-5),
        beta_scale=2.0 if reader.boolean("linear_allow_neg_eigval", True) else 1.0,
    )
