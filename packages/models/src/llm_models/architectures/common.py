"""Owns what configs of most decoders have in common, as parts of specs; knows nothing about any family."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import LayerSpec
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader, architecture_name
from llm_models.errors import ConfigError
from llm_models.names import LLAMA_NAMES, Names
from llm_models.rope import rope_from_config
from llm_models.spec import DecoderSpec, Embedding, Head


def attention(
    config: Mapping[str, Any],
    *,
    default_head_size: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: QKNorm | None = None,
    sliding_window: int | None = None,
    layer_type: str | None = None,
    theta: float = 10000.0,
    partial: float = 1.0,
    interleaved: bool = False,
) -> Attention:
    """Reads grouped-query attention with rope; for more, `dataclasses.replace` what differs.

    `head_dim` falls back to `default_head_size`, else to `hidden_size / num_attention_heads`;
    `num_key_value_heads` falls back to `num_attention_heads`. The rope's defaults are those of
    `rope_from_config`.
    """
    reader = ConfigReader(config)
    heads = reader.positive_int("num_attention_heads")
    head_size = head_size_of(config, default_head_size)
    max_positions = reader.positive_int("max_position_embeddings")
    rope = rope_from_config(
        config,
        head_size=head_size,
        max_positions=max_positions,
        layer_type=layer_type,
        theta=theta,
        partial=partial,
        interleaved=interleaved,
    )
    return Attention(
        num_heads=heads,
        num_kv_heads=reader.positive_int("num_key_value_heads", heads),
        head_size=head_size,
        scale=head_size**-0.5,
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
    )


def head_size_of(config: Mapping[str, Any], default: int | None = None) -> int:
    """`head_dim`, else `default`, else `hidden_size / num_attention_heads`."""
    reader = ConfigReader(config)
    if reader.has("head_dim") or default is not None:
        return reader.positive_int("head_dim", default)
    heads, width = reader.positive_int("num_attention_heads"), reader.positive_int("hidden_size")
    if width % heads:
        reason = f"is no multiple of num_attention_heads {heads}, and head_dim is missing"
        raise ConfigError("hidden_size", reason)
    return width // heads


def layer_kinds(config: Mapping[str, Any]) -> list[str] | None:
    """`layer_types`, one a layer; None where the config has none."""
    reader = ConfigReader(config)
    if not reader.has("layer_types"):
        return None
    kinds, layers = reader.sequence("layer_types"), reader.positive_int("num_hidden_layers")
    if len(kinds) != layers:
        raise ConfigError("layer_types", f"has {len(kinds)} entries for {layers} layers")
    return kinds


def rms_norm(
    config: Mapping[str, Any], field: str = "rms_norm_eps", *, plus_one: bool = False, default: float = 1e-6
) -> Norm:
    """Reads the eps of a root-mean-square norm."""
    return Norm(eps=ConfigReader(config).positive_float(field, default), plus_one=plus_one)


def layer_norm(config: Mapping[str, Any], field: str = "layer_norm_eps", *, bias: bool = True) -> Norm:
    """Reads the eps of a mean and variance norm."""
    return Norm(eps=ConfigReader(config).positive_float(field, 1e-5), kind="layer", bias=bias)


def gated_mlp(config: Mapping[str, Any], *, field: str = "intermediate_size", bias: bool = False) -> MLP:
    """Reads a gated feed-forward."""
    reader = ConfigReader(config)
    return MLP(intermediate_size=reader.positive_int(field), activation=reader.activation(), bias=bias)


def decoder(
    config: Mapping[str, Any],
    layers: Sequence[LayerSpec],
    *,
    final_norm: Norm | None,
    names: Names = LLAMA_NAMES,
    embedding: Embedding | None = None,
    head: Head | None = None,
    tied: bool = False,
    max_positions: int | None = None,
) -> DecoderSpec:
    """Puts a decoder together.

    Args:
        config: The model config.
        layers: One a layer.
        final_norm: Before the head.
        names: Of the checkpoint.
        embedding: None: a plain one of `vocab_size`.
        head: None: a plain one. `tie_word_embeddings` decides on `tied` in any case.
        tied: Where the config does not say.
        max_positions: None: `max_position_embeddings`.
    """
    reader = ConfigReader(config)
    is_tied = reader.boolean("tie_word_embeddings", tied)
    return DecoderSpec(
        architecture=architecture_name(config),
        hidden_size=reader.positive_int("hidden_size"),
        max_positions=max_positions or reader.positive_int("max_position_embeddings"),
        embedding=embedding or Embedding(vocab_size=reader.positive_int("vocab_size")),
        layers=tuple(layers),
        final_norm=final_norm,
        head=Head(tied=is_tied) if head is None else replace(head, tied=is_tied),
        names=names,
    )


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The config with the usual field names filled in from those of an older family (`names`: new to old)."""
    usual = {new: config[old] for new, old in names.items() if config.get(old) is not None}
    return {**config, **usual}


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv:2108.12409); where the heads are no power of two, twice as many between."""
    nearest = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (index + 1) / nearest) for index in range(nearest)]
    between = [2.0 ** (-8 * (index + 1) / (2 * nearest)) for index in range(0, 2 * nearest, 2)]
    return tuple((slopes + between)[:num_heads])
