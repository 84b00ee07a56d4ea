"""Owns the spec of Laguna; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, with_defaults
from llm_models.architectures.mixtures import expert_names, feed_forwards, shared_mlp
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        **expert_names(shared="shared_expert"),
        "mlp.experts.e_score_correction_bias": "mlp.router.correction",
        "self_attn.g_proj": "attention.gate",
    }
)
_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


@architecture("LagunaForCausalLM")
def laguna(config: Mapping[str, Any]) -> DecoderSpec:
    """Laguna: attention gated by a softplus, heads and rope by layer, experts beside a shared MLP."""
    config = with_defaults(renamed(config, {"num_experts": "num_local_experts"}), sliding_window=512)
    if config.get("rope_parameters") is None:
        config["rope_parameters"] = _ROPES
    reader, norm = ConfigReader(config), rms_norm(config)
    reader.refuse("moe_apply_router_weight_on_input", "the reference does not do it")
    blocks = feed_forwards(config, _moe(config), dense_layers=1)
    windows = attention_windows(config, lambda _: True)
    layers = [
        pre_norm(replace(_mixer(config, window), num_heads=heads), block, norm)
        for window, heads, block in zip(windows, _heads(reader), blocks, strict=True)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _heads(reader: ConfigReader) -> list[int]:
    count, field = reader.positive_int("num_hidden_layers"), "num_attention_heads_per_layer"
    if not reader.has(field):
        return [reader.positive_int("num_attention_heads")] * count
    heads = reader.sequence(field)
    if len(heads) != count or not all(type(value) is int and value > 0 for value in heads):
        raise ConfigError(field, f"must be {count} integers above 0, not {heads}")
    return heads


def _mixer(config: Mapping[str, Any], window: int | None) -> Attention:
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    gating = config.get("gating", True)
    if gating not in (True, "per-head", "per-element"):
        raise UnsupportedConfig("gating", f"{gating!r} is none of true, per-head and per-element")
    mixer = attention(
        config,
        default_head_size=128,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNorm(norm=norm),
        sliding_window=window,
        layer_type=FULL if window is None else SLIDING,
    )
    return replace(
        mixer,
        gate="element" if gating == "per-element" else "head",
        gate_bias=False,
        gate_activation="softplus",
    )


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    cap = reader.number("moe_router_logit_softcapping", 0.0)
    return MoE(
        num_experts=reader.positive_int("num_experts", 256),
        expert_size=reader.positive_int("moe_intermediate_size", 512),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 8),
            scoring="sigmoid",
            correction=True,
            renormalize=True,
            scale=reader.positive_float("moe_routed_scaling_factor", 1.0),
            soft_cap=cap if cap > 0 else None,
        ),
        shared=shared_mlp(config, reader.positive_int("shared_expert_intermediate_size", 512)),
    )
