"""Owns the spec of Gemma 3n's text model; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.gemma import GEMMA2_NAMES
from llm_models.architectures.layouts import (
    FULL,
    SLIDING,
    attention_windows,
    every_nth,
    sliding_rope_config,
    with_defaults,
)
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.altup import AltUp, AltUpLayer
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer_input import InputTables, LayerInput
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import Names
from llm_models.spec import DecoderSpec, Embedding, Head

_NAMES = GEMMA2_NAMES.but(
    {
        "altup.modality_router": "altup.router",
        "altup.router_norm": "altup.router_norm",
        "altup.prediction_coefs": "altup.predict",
        "altup.correction_coefs": "altup.correct",
        "altup.correct_output_scale": "altup.output_scale",
        "laurel.linear_left": "laurel.left",
        "laurel.linear_right": "laurel.right",
        "laurel.post_laurel_norm": "laurel.post_norm",
        "per_layer_input_gate": "layer_input.gate",
        "per_layer_projection": "layer_input.projection",
        "post_per_layer_input_norm": "layer_input.post_norm",
    },
    top={
        "model.embed_tokens_per_layer": "layers.{i}.layer_inputs.table",
        "model.per_layer_model_projection": "layers.{i}.layer_inputs.projection",
        "model.per_layer_projection_norm": "layers.{i}.layer_inputs.norm",
        "model.altup_projections.{e}": "layers.{i}.expand.{e}",
        "model.altup_unembed_projections.{e}": "layers.{i}.merge.{e}",
    },
)
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "num_kv_shared_layers": 15,
    "final_logit_softcapping": 30.0,
}
_THETA, _LOCAL_THETA = 1000000.0, 10000.0
# What tells the parts for pictures and sound from the text part.
_OTHER_PARTS = (r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*",)


@architecture("Gemma3nForCausalLM")
def gemma3n(config: Mapping[str, Any]) -> DecoderSpec:
    """The text model of Gemma 3n alone."""
    return _gemma3n(with_defaults(config, **_DEFAULTS), _NAMES)


@architecture("Gemma3nForConditionalGeneration")
def gemma3n_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal Gemma 3n."""
    names = text_names(_NAMES, "model.language_model.", "language_model.model.", harmless=_OTHER_PARTS)
    return _gemma3n(with_defaults(text_config(config, tied=True), **_DEFAULTS), names)


def _gemma3n(config: Mapping[str, Any], names: Names) -> DecoderSpec:
    reader, norm = ConfigReader(config), rms_norm(config)
    reader.refuse("use_bidirectional_attention", "this is a decoder")
    activation = reader.activation("hidden_activation", "gelu_pytorch_tanh")
    count = reader.positive_int("num_hidden_layers")
    windows = attention_windows(config, every_nth(5))
    size = reader.positive_int("hidden_size_per_layer_input", 256)
    altup = AltUp(
        streams=reader.positive_int("altup_num_inputs", 4),
        active=reader.whole_number("altup_active_idx", 0),
        norm=norm,
        scales_output=reader.boolean("altup_correct_scale", True),
    )
    if altup.active >= altup.streams:
        raise ConfigError("altup_active_idx", f"{altup.active} is not below {altup.streams} streams")
    layers = []
    for index, (window, source) in enumerate(zip(windows, _sources(reader, windows), strict=True)):
        layers.append(
            AltUpLayer(
                altup=altup,
                mixer=_mixer(config, window, source),
                feed_forward=MLP(
                    intermediate_size=_inner_sizes(config, count)[index],
                    activation=activation,
                    sparsity=_sparsities(config, count)[index],
                ),
                norm=norm,
                laurel_rank=reader.positive_int("laurel_rank", 64),
                layer_input=LayerInput(layer=index, size=size, activation=activation),
                tables=_tables(config, count, size) if index == 0 else None,
                is_last=index == count - 1,
            )
        )
    shared = "|".join(str(i) for i in range(count - reader.whole_number("num_kv_shared_layers"), count))
    if shared:
        names = names.but(harmless=(rf".*layers\.({shared})\.self_attn\.[kv]_(proj|norm)\..*",))
    has_cap = reader.has("final_logit_softcapping")
    return decoder(
        config,
        layers,
        final_norm=norm,
        names=names,
        embedding=Embedding(
            vocab_size=reader.positive_int("vocab_size"), scale=reader.positive_int("hidden_size") ** 0.5
        ),
        head=Head(tied=True, soft_cap=reader.positive_float("final_logit_softcapping") if has_cap else None),
        tied=True,
    )


def _mixer(config: Mapping[str, Any], window: int | None, source: int | None) -> Attention:
    bias, norm = ConfigReader(config).boolean("attention_bias", False), rms_norm(config)
    kind, theta = (FULL, _THETA) if window is None else (SLIDING, _LOCAL_THETA)
    if window is not None:
        config = sliding_rope_config(config, config.get("rope_local_base_freq", _LOCAL_THETA))
    mixer = attention(config, qkv_bias=bias, output_bias=bias, layer_type=kind, theta=theta)
    return replace(
        mixer,
        scale=1.0,
        sliding_window=window,
        qk_norm=QKNorm(norm=norm),
        value_norm=replace(norm, weight=False),
        kv_from=source,
    )


def _sources(reader: ConfigReader, windows: list[int | None]) -> list[int | None]:
    """For every layer without keys of its own: the last layer of its kind that has some."""
    first = len(windows) - reader.whole_number("num_kv_shared_layers")
    last = {window: index for index, window in enumerate(windows[: max(first, 0)])}
    if not set(windows) <= set(last):
        raise ConfigError("num_kv_shared_layers", "leaves no keys to share to some kind of layer")
    return [None] * first + [last[window] for window in windows[first:]]


def _tables(config: Mapping[str, Any], layers: int, size: int) -> InputTables:
    reader = ConfigReader(config)
    rows = reader.positive_int("vocab_size_per_layer_input", 262144)
    is_partial = rows < reader.positive_int("vocab_size")
    return InputTables(
        vocab_size=rows, layers=layers, size=size, norm=rms_norm(config), is_partial=is_partial
    )


def _inner_sizes(config: Mapping[str, Any], count: int) -> list[int]:
    field = "intermediate_size"
    if not isinstance(config[field], list | tuple):
        return [ConfigReader(config).positive_int(field)] * count
    sizes = ConfigReader(config).sequence(field)
    if len(sizes) != count or not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(field, f"must be {count} integers above 0, not {sizes}")
    return sizes


def _sparsities(config: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """The share of a gate that is cut off; by default that of the first ten of many layers."""
    field, sparse = "activation_sparsity_pattern", 10 if count > 10 else 0
    shares = ConfigReader(config).floats(field, (0.95,) * sparse + (0.0,) * (count - sparse))
    if len(shares) != count or not all(0 <= share < 1 for share in shares):
        raise UnsupportedConfig(field, f"must be {count} numbers from 0 to below 1")
    return shares
