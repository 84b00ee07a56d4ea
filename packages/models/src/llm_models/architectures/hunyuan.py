"""Owns the spec of dense Hunyuan; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

HUNYUAN_NAMES = LLAMA_NAMES.but(
    {
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
    },
    without=("self_attn.q_norm", "self_attn.k_norm"),
)


@architecture("HunYuanDenseV1ForCausalLM")
def hunyuan_dense(config: Mapping[str, Any]) -> DecoderSpec:
    """Hunyuan 0.5B to 7B: Llama with norms of heads after the rope, whose base may be raised."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    layer = pre_norm(hunyuan_mixer(config), gated_mlp(config), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=HUNYUAN_NAMES)


def hunyuan_mixer(config: Mapping[str, Any]) -> Attention:
    """Attention of dense and sparse Hunyuan."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    reader.refuse("use_cla", "keys and values shared across layers are not supported")
    bias = reader.boolean("attention_bias", False)
    qk_norm = QKNorm(norm=norm, after_rope=True)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm)
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    if section is None or mixer.rope is None or not section.has("alpha"):
        return mixer
    if section.string("rope_type", section.string("type", "default")) != "dynamic":
        return mixer
    size = mixer.head_size
    theta = mixer.rope.theta * section.positive_float("alpha") ** (size / (size - 2))
    return replace(mixer, rope=replace(mixer.rope, theta=theta))
