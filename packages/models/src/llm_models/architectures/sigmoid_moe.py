"""Owns the specs of mixtures with a sigmoid router: MiniMax M2, K-EXAONE, Trinity and Hunyuan V3.

Knows nothing about weights or the runtime.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import attention_windows, every_nth, sandwich, with_defaults
from llm_models.architectures.mixtures import (
    choose,
    expert_names,
    feed_forwards,
    further_layers,
    shared_mlp,
    sigmoid_router,
)
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Embedding

_MINIMAX_NAMES = LLAMA_NAMES.but(
    {
        **expert_names("block_sparse_moe", parts=("w1", "w3", "w2")),
        "block_sparse_moe.e_score_correction_bias": "mlp.router.correction",
    }
)
_EXAONE_NAMES = LLAMA_NAMES.but(
    {**expert_names(shared="shared_experts"), "mlp.e_score_correction_bias": "mlp.router.correction"},
    # Layers that predict several tokens at once.
    harmless=(r"mtp\..*",),
)
_AFMOE_NAMES = LLAMA_NAMES.but(
    {
        **expert_names(router="router.gate", shared="shared_experts"),
        "mlp.expert_bias": "mlp.router.correction",
        "self_attn.gate_proj": "attention.gate",
        "post_attention_layernorm": "attention.post_norm",
        "pre_mlp_layernorm": "mlp.norm",
        "post_mlp_layernorm": "mlp.post_norm",
    }
)
_HUNYUAN_NAMES = LLAMA_NAMES.but(
    {
        **expert_names(router="router.gate", shared="shared_mlp"),
        "mlp.expert_bias": "mlp.router.correction",
    }
)


@architecture("MiniMaxM2ForCausalLM")
def minimax_m2(config: Mapping[str, Any]) -> DecoderSpec:
    """MiniMax M2: norms over whole queries and keys, rope over part of a head."""
    config = renamed(config, {"num_local_experts": "num_experts"})
    reader, norm = ConfigReader(config), rms_norm(config)
    partial = 1.0
    if reader.has("rotary_dim"):
        partial = reader.positive_int("rotary_dim") / reader.positive_int("head_dim", 128)
    mixer = attention(
        config,
        default_head_size=128,
        qk_norm=QKNorm(norm=norm, over="all"),
        theta=5e6,
        partial=partial,
    )
    moe = MoE(
        num_experts=reader.positive_int("num_local_experts", 256),
        expert_size=reader.positive_int("intermediate_size"),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 8),
            scoring="sigmoid",
            correction=True,
            renormalize=True,
        ),
    )
    layers = [pre_norm(mixer, moe, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_MINIMAX_NAMES)


@architecture("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM")
def exaone_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """K-EXAONE: layers with a window and rope to one without either, and norms of heads."""
    config = with_defaults(
        renamed(config, {"num_experts": "num_local_experts"}),
        sliding_window=4096,
        num_experts_per_tok=8,
        routed_scaling_factor=2.5,
    )
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    size = reader.positive_int("moe_intermediate_size", 1024)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 64),
        expert_size=size,
        activation=reader.activation(),
        router=sigmoid_router(config),
        shared=shared_mlp(config, size * reader.whole_number("num_shared_experts", 1)),
    )
    has_window = config["sliding_window"] is not None
    needs_period = has_window and config.get("layer_types") is None
    period = reader.positive_int("sliding_window_pattern", 4) if needs_period else 1
    mixer = attention(config, qk_norm=QKNorm(norm=norm))
    windows = attention_windows(config, every_nth(period))
    layers = [
        pre_norm(
            replace(mixer, sliding_window=window, rope=None if has_window and window is None else mixer.rope),
            block,
            norm,
        )
        for window, block in zip(windows, feed_forwards(config, moe, dense_layers=1), strict=True)
    ]
    return decoder(config, layers, final_norm=norm, names=_EXAONE_NAMES)


@architecture("AfmoeForCausalLM")
def afmoe(config: Mapping[str, Any]) -> DecoderSpec:
    """Arcee Trinity: gated attention, rope only in layers with a window, norms around each block."""
    config = with_defaults(renamed(config, {"num_experts": "num_local_experts"}), sliding_window=1024)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(
        config, default_head_size=128, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm(norm=norm)
    )
    mixer = replace(mixer, gate="element", gate_bias=False)
    size = reader.positive_int("moe_intermediate_size", 1408)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 64),
        expert_size=size,
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 6),
            scoring="sigmoid",
            correction=True,
            renormalize=True,
            scale=reader.positive_float("route_scale", 1.0),
        ),
        shared=shared_mlp(config, size * reader.whole_number("num_shared_experts", 2)),
    )
    windows = attention_windows(config, every_nth(reader.positive_int("global_attn_every_n_layers", 4)))
    first = reader.whole_number("num_dense_layers", 1)
    blocks = choose(config, moe, (layer >= first for layer in range(len(windows))))
    layers = [
        sandwich(replace(mixer, sliding_window=window, rope=mixer.rope if window else None), block, norm)
        for window, block in zip(windows, blocks, strict=True)
    ]
    width = reader.positive_int("hidden_size")
    embedding = Embedding(
        vocab_size=reader.positive_int("vocab_size"),
        scale=width**0.5 if reader.boolean("mup_enabled", False) else 1.0,
    )
    return decoder(config, layers, final_norm=norm, names=_AFMOE_NAMES, embedding=embedding)


@architecture("HYV3ForCausalLM")
def hunyuan_v3(config: Mapping[str, Any]) -> DecoderSpec:
    """Hunyuan V3: norms of heads, and a scaled sigmoid router."""
    config = renamed(config, {"num_experts": "num_local_experts"})
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    reader.refuse("mlp_bias", "biases of feed-forwards are not supported")
    bias = reader.boolean("attention_bias", False)
    mixer = attention(
        config,
        default_head_size=128,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNorm(norm=norm),
        theta=11158840.0,
    )
    size = reader.positive_int("moe_intermediate_size", 1536)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 192),
        expert_size=size,
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 8),
            scoring="sigmoid",
            correction=True,
            renormalize=True,
            scale=reader.positive_float("router_scaling_factor", 2.826),
            in_float32=True,
        ),
        shared=shared_mlp(config, size * reader.whole_number("num_shared_experts", 1)),
    )
    layers = [pre_norm(mixer, block, norm) for block in feed_forwards(config, moe, dense_layers=1)]
    names = _HUNYUAN_NAMES.but(harmless=further_layers(config))
    return decoder(config, layers, final_norm=norm, names=names)
