"""Owns the spec of Mellum; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, with_defaults
from llm_models.architectures.mixtures import expert_names, feed_forwards
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

# The layer that predicts several tokens at once.
_NAMES = LLAMA_NAMES.but(expert_names(), harmless=(r"(model\.)?mtp\..*",))
_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}


@architecture("MellumForCausalLM")
def mellum(config: Mapping[str, Any]) -> DecoderSpec:
    """Mellum: Qwen3-MoE with a rope by kind of layer, some of which slide."""
    config = with_defaults(renamed(config, {"num_experts": "num_local_experts"}), sliding_window=1024)
    if config.get("rope_parameters") is None:
        config["rope_parameters"] = _ROPES
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 64),
        expert_size=reader.positive_int("moe_intermediate_size", 896),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 8),
            renormalize=reader.boolean("norm_topk_prob", True),
        ),
    )
    layers = []
    for window, block in zip(
        attention_windows(config, lambda _: True), feed_forwards(config, moe), strict=True
    ):
        mixer = attention(
            config,
            default_head_size=128,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm(norm=norm),
            sliding_window=window,
            layer_type=FULL if window is None else SLIDING,
        )
        layers.append(pre_norm(mixer, block, norm))
    return decoder(config, layers, final_norm=norm, names=_NAMES)
