"""Owns the spec of Granite 4: Mamba 2 and attention layers, with experts beside a shared feed-forward."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import (
    FULL,
    LINEAR,
    MAMBA2_NAMES,
    hybrid_kinds,
    hybrid_names,
    mamba2,
)
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Target, rows, stacked
from llm_models.spec import DecoderSpec, Embedding, Head

_EXPERT_NAMES: Mapping[str, Target] = {
    "block_sparse_moe.router.layer": "mlp.router",
    "block_sparse_moe.input_linear": rows("mlp.experts.{e}.gate", "mlp.experts.{e}.up", stacked=True),
    "block_sparse_moe.output_linear": stacked("mlp.experts.{e}.down"),
    "shared_mlp.input_linear": rows("mlp.shared.gate", "mlp.shared.up"),
    "shared_mlp.output_linear": "mlp.shared.down",
}
_DENSE_NAMES: Mapping[str, Target] = {
    "shared_mlp.input_linear": rows("mlp.gate", "mlp.up"),
    "shared_mlp.output_linear": "mlp.down",
}


@architecture("GraniteMoeHybridForCausalLM")
def granite_moe_hybrid(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite 4, dense or with experts, with or without Mamba 2 layers."""
    reader, norm = ConfigReader(config), rms_norm(config)
    scale = reader.number("residual_multiplier", 1.0)
    kinds = hybrid_kinds(config, [LINEAR] * reader.positive_int("num_hidden_layers"))
    mixers: dict[str, BlockSpec] = {}
    if FULL in kinds:
        mixers[FULL] = _attention(config)
    if LINEAR in kinds:
        mixers[LINEAR] = mamba2(config)
    has_experts = reader.whole_number("num_local_experts", 8) > 0
    feed_forward = _feed_forward(config, has_experts=has_experts)
    layers = [
        Layer(
            (
                Branch(blocks=(mixers[kind],), pre=norm, scale=scale, name="mixer"),
                Branch(blocks=(feed_forward,), pre=norm, scale=scale),
            )
        )
        for kind in kinds
    ]
    embedding_scale = reader.number("embedding_multiplier", 1.0)
    return decoder(
        config,
        layers,
        final_norm=norm,
        names=hybrid_names(LLAMA_NAMES, {**MAMBA2_NAMES, **(_EXPERT_NAMES if has_experts else _DENSE_NAMES)}),
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), scale=embedding_scale),
        head=Head(tied=False, scale=1 / reader.positive_float("logits_scaling", 1.0)),
        max_positions=reader.positive_int("max_position_embeddings", 2048),
    )


def _attention(config: Mapping[str, Any]) -> Attention:
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    kind = config.get("position_embedding_type") or "nope"
    if kind not in ("rope", "nope"):
        raise UnsupportedConfig("position_embedding_type", f"{kind!r} is neither rope nor nope")
    rope = mixer.rope if kind == "rope" else None
    return replace(mixer, rope=rope, scale=reader.positive_float("attention_multiplier", 1.0))


def _feed_forward(config: Mapping[str, Any], *, has_experts: bool) -> BlockSpec:
    reader = ConfigReader(config)
    shared_size = reader.positive_int("shared_intermediate_size", 1024)
    shared = replace(gated_mlp(config), intermediate_size=shared_size)
    if not has_experts:
        return shared
    return MoE(
        num_experts=reader.positive_int("num_local_experts", 8),
        expert_size=reader.positive_int("intermediate_size"),
        activation=shared.activation,
        router=Router(top_k=reader.positive_int("num_experts_per_tok", 2), scoring="softmax_after"),
        shared=replace(shared, name="shared"),
    )
