"""Owns the specs of Gemma 1 to 3 and VaultGemma; knows nothing about weights or the runtime."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.layouts import (
    FULL,
    SLIDING,
    attention_windows,
    every_nth,
    sandwich,
    sliding_rope_config,
    with_defaults,
)
from llm_models.architectures.pooled_decoders import embedder
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import BlockSpec, Layer, LayerSpec, pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, Names
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec, Embedding, Head

GEMMA2_NAMES = LLAMA_NAMES.but(
    {
        "post_attention_layernorm": "attention.post_norm",
        "pre_feedforward_layernorm": "mlp.norm",
        "post_feedforward_layernorm": "mlp.post_norm",
    }
)
_VAULT_NAMES = LLAMA_NAMES.but(
    {"pre_feedforward_layernorm": "mlp.norm"}, without=("post_attention_layernorm",)
)
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_GEMMA3_THETA, _GEMMA3_LOCAL_THETA = 1000000.0, 10000.0
# What tells the vision part from the text part.
_VISION = (r"(model\.)?(vision_tower|multi_modal_projector)\..*",)


@architecture("GemmaForCausalLM")
def gemma(config: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 1: Llama with wide heads, scaled embeddings, a GELU gate and norms that scale by 1 + w."""
    reader, norm = ConfigReader(config), rms_norm(config, plus_one=True)
    # The first release wrote "gelu" and meant the tanh approximation.
    is_legacy = config.get("hidden_act") == "gelu"
    activation = "gelu_tanh" if is_legacy else reader.activation("hidden_act", "gelu_pytorch_tanh")
    mlp = MLP(intermediate_size=reader.positive_int("intermediate_size"), activation=activation)
    layer = pre_norm(_mixer(config), mlp, norm)
    return _gemma(config, [layer] * reader.positive_int("num_hidden_layers"))


@architecture("Gemma2ForCausalLM")
def gemma2(config: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 2: norms around each block, every other layer with a window, capped scores and logits."""
    return _gemma(config, _gemma2_layers(config, sandwich), names=GEMMA2_NAMES, soft_cap=30.0)


@architecture("VaultGemmaForCausalLM")
def vaultgemma(config: Mapping[str, Any]) -> DecoderSpec:
    """VaultGemma: Gemma 2 without the norms after the blocks."""
    return _gemma(config, _gemma2_layers(config, pre_norm), names=_VAULT_NAMES, soft_cap=30.0)


@architecture("Gemma3ForCausalLM")
def gemma3(config: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 3: five layers with a window to one without, a rope for each kind, norms of heads, no caps."""
    return _gemma3(config, GEMMA2_NAMES)


@architecture("Gemma3ForConditionalGeneration")
def gemma3_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal Gemma 3."""
    names = text_names(GEMMA2_NAMES, "language_model.model.", "model.language_model.", harmless=_VISION)
    return _gemma3(text_config(config, tied=True), names)


@architecture("Gemma3TextModel")
def gemma3_embedder(config: Mapping[str, Any]) -> PooledSpec:
    """Gemma 3 as an embedder; EmbeddingGemma looks to both sides."""
    return embedder(_gemma3(config, GEMMA2_NAMES, is_embedder=True))


def _gemma3(config: Mapping[str, Any], names: Names, *, is_embedder: bool = False) -> DecoderSpec:
    config = with_defaults(config, **_GEMMA3_DEFAULTS)
    reader, norm = ConfigReader(config), rms_norm(config, plus_one=True)
    looks_ahead = is_embedder and reader.boolean("use_bidirectional_attention", False)
    if looks_ahead:  # The config counts both sides.
        reach = reader.positive_int("sliding_window") // 2 + 1
        config = {**config, "sliding_window": reach, "use_bidirectional_attention": False}
    reader.refuse("attn_logit_softcapping", "Gemma 3 does not cap the scores")
    local = sliding_rope_config(config, config.get("rope_local_base_freq", _GEMMA3_LOCAL_THETA))
    period = reader.positive_int("sliding_window_pattern", 6)
    scale, layers = _query_scale(reader), []
    for window in attention_windows(config, every_nth(period)):
        if window is None:
            mixer = _mixer(config, layer_type=FULL, theta=_GEMMA3_THETA)
        else:
            mixer = _mixer(local, layer_type=SLIDING, theta=_GEMMA3_LOCAL_THETA)
        mixer = replace(
            mixer,
            scale=scale,
            sliding_window=window,
            qk_norm=QKNorm(norm=norm),
            causal=not looks_ahead,
        )
        layers.append(sandwich(mixer, _mlp(reader), norm))
    return _gemma(config, layers, names=names)


def _gemma2_layers(
    config: Mapping[str, Any], layout: Callable[[BlockSpec, BlockSpec, Norm], Layer]
) -> list[Layer]:
    config = with_defaults(config, sliding_window=4096, attn_logit_softcapping=50.0)
    reader, norm = ConfigReader(config), rms_norm(config, plus_one=True)
    cap = reader.positive_float("attn_logit_softcapping") if reader.has("attn_logit_softcapping") else None
    mixer = replace(_mixer(config), scale=_query_scale(reader), soft_cap=cap)
    mlp = _mlp(reader)
    return [
        layout(replace(mixer, sliding_window=window), mlp, norm)
        for window in attention_windows(config, every_nth(2))
    ]


def _query_scale(reader: ConfigReader) -> float:
    return 1 / math.sqrt(reader.positive_float("query_pre_attn_scalar", 256.0))


def _mlp(reader: ConfigReader) -> MLP:
    activation = reader.activation("hidden_activation", "gelu_pytorch_tanh")
    return MLP(intermediate_size=reader.positive_int("intermediate_size"), activation=activation)


def _mixer(config: Mapping[str, Any], layer_type: str | None = None, theta: float = 10000.0) -> Attention:
    bias = ConfigReader(config).boolean("attention_bias", False)
    return attention(
        with_defaults(config, head_dim=256),
        qkv_bias=bias,
        output_bias=bias,
        layer_type=layer_type,
        theta=theta,
    )


def _gemma(
    config: Mapping[str, Any],
    layers: Sequence[LayerSpec],
    *,
    names: Names = LLAMA_NAMES,
    soft_cap: float | None = None,
) -> DecoderSpec:
    reader = ConfigReader(config)
    reader.refuse("use_bidirectional_attention", "this is a decoder")
    if reader.states("final_logit_softcapping"):
        has_cap = reader.has("final_logit_softcapping")
        soft_cap = reader.positive_float("final_logit_softcapping") if has_cap else None
    width = reader.positive_int("hidden_size")
    return decoder(
        config,
        layers,
        final_norm=rms_norm(config, plus_one=True),
        names=names,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), scale=width**0.5),
        head=Head(tied=True, soft_cap=soft_cap),
        tied=True,
    )
