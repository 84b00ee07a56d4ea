"""Owns the spec of Llama 2 and 3 and what its relatives share; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.config import ConfigReader, architecture_name
from llm_models.errors import ConfigError
from llm_models.rope import rope_from_config
from llm_models.spec import AttentionSpec, BlockSpec, DecoderSpec, EmbeddingSpec, MLPSpec, NormSpec


def attention(
    config: Mapping[str, Any],
    *,
    default_head_size: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: NormSpec | None = None,
    sliding_window: int | None = None,
) -> AttentionSpec:
    """Reads grouped-query attention with rope.

    `head_dim` falls back to `default_head_size`, else to `hidden_size / num_attention_heads`;
    `num_key_value_heads` falls back to `num_attention_heads`.
    """
    reader = ConfigReader(config)
    heads = reader.positive_int("num_attention_heads")
    kv_heads = reader.positive_int("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    if (
        not reader.has("head_dim")
        and default_head_size is None
        and reader.positive_int("hidden_size") % heads
    ):
        raise ConfigError(
            "hidden_size", f"is no multiple of num_attention_heads {heads}, and head_dim is missing"
        )
    head_size = reader.positive_int(
        "head_dim", default_head_size or reader.positive_int("hidden_size") // heads
    )
    max_positions = reader.positive_int("max_position_embeddings")
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        scale=head_size**-0.5,
        rope=rope_from_config(config, head_size=head_size, max_positions=max_positions),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
    )


def norm(config: Mapping[str, Any]) -> NormSpec:
    """Reads `rms_norm_eps`."""
    return NormSpec(eps=ConfigReader(config).positive_float("rms_norm_eps", 1e-6))


def decoder(config: Mapping[str, Any], mixers: list[AttentionSpec], *, mlp_bias: bool = False) -> DecoderSpec:
    """Assembles a pre-norm decoder with gated MLPs around one mixer a layer."""
    reader = ConfigReader(config)
    reader.refuse("quantization_config", "quantized safetensors checkpoints are not supported")
    feed_forward = MLPSpec(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation(),
        bias=mlp_bias,
    )
    return DecoderSpec(
        architecture=architecture_name(config),
        hidden_size=reader.positive_int("hidden_size"),
        max_positions=reader.positive_int("max_position_embeddings"),
        embedding=EmbeddingSpec(
            vocab_size=reader.positive_int("vocab_size"), tied=reader.boolean("tie_word_embeddings", False)
        ),
        layers=tuple(
            BlockSpec(mixer=mixer, feed_forward=feed_forward, norm=norm(config)) for mixer in mixers
        ),
        final_norm=norm(config),
    )


@architecture("LlamaForCausalLM")
def llama(config: Mapping[str, Any]) -> DecoderSpec:
    """Llama 2 and 3, and the many models that use its layout (SmolLM2, TinyLlama, Yi ...)."""
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    layers = reader.positive_int("num_hidden_layers")
    return decoder(config, [mixer] * layers, mlp_bias=reader.boolean("mlp_bias", False))
