"""Owns the spec of Flint: sinks, rope in windowed layers only, sigmoid-routed experts beside a shared MLP."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_kinds, renamed, rms_norm
from llm_models.architectures.mixtures import expert_names
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {**expert_names(shared="shared_expert"), "self_attn.softmax_offset": "attention.sinks"}
)


@architecture("FlintForCausalLM")
def flint(config: Mapping[str, Any]) -> DecoderSpec:
    """Flint."""
    config = renamed(config, {"num_experts": "num_local_experts"})
    reader, norm = ConfigReader(config), rms_norm(config)
    bias, count = reader.boolean("attention_bias", False), reader.positive_int("num_hidden_layers")
    mixer = attention(
        config, default_head_size=128, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm(norm=norm)
    )
    mixers = {
        "full_attention": replace(mixer, sinks=True, rope=None),
        "sliding_attention": replace(
            mixer, sinks=True, sliding_window=reader.positive_int("sliding_window", 513)
        ),
    }
    shared = gated_mlp(config, field="shared_expert_intermediate_size")
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 256),
        expert_size=reader.positive_int("moe_intermediate_size", 512),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 6),
            scoring="sigmoid",
            renormalize=reader.boolean("norm_topk_prob", True),
            renormalize_eps=0.0,
            in_float32=True,
        ),
        shared=replace(shared, name="shared"),
    )
    dense = set(reader.sequence("mlp_only_layers") if reader.has("mlp_only_layers") else (0, 1))
    every = reader.positive_int("decoder_sparse_step", 1)
    layers = []
    for index, kind in enumerate(layer_kinds(config) or _default_kinds(count)):
        if kind not in mixers:
            raise UnsupportedConfig("layer_types", f"{kind!r} is none of {', '.join(mixers)}")
        is_dense = index in dense or (index + 1) % every
        layers.append(pre_norm(mixers[kind], gated_mlp(config) if is_dense else moe, norm))
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _default_kinds(count: int) -> list[str]:
    full = {0, 1, count - 1, *range(1, count, 4)}
    return ["full_attention" if index in full else "sliding_attention" for index in range(count)]
