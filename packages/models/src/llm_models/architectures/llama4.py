"""Owns the spec of Llama 4's text model; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_kinds, renamed, rms_norm
from llm_models.architectures.layouts import FULL, with_defaults
from llm_models.architectures.mixtures import shared_mlp, shared_names, stacked_names
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.attention import Attention, QKNorm, QueryTemperature
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Names
from llm_models.spec import DecoderSpec

_CHUNKED = "chunked_attention"
_PLACE = "feed_forward"
_NAMES = LLAMA_NAMES.but(
    {
        f"{_PLACE}.router": "mlp.router",
        f"{_PLACE}.gate_proj": "mlp.gate",
        f"{_PLACE}.up_proj": "mlp.up",
        f"{_PLACE}.down_proj": "mlp.down",
        **stacked_names(f"{_PLACE}.experts.gate_up_proj", f"{_PLACE}.experts.down_proj", transposed=True),
        **shared_names(f"{_PLACE}.shared_expert"),
    },
    without=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
# What tells the vision part from the text part.
_VISION = (r"(vision_model|multi_modal_projector)\..*",)


@architecture("Llama4ForCausalLM")
def llama4(config: Mapping[str, Any]) -> DecoderSpec:
    """The text model of Llama 4 Scout and Maverick alone."""
    return _llama4(config, _NAMES)


@architecture("Llama4ForConditionalGeneration")
def llama4_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal Llama 4."""
    names = text_names(_NAMES, "language_model.model.", harmless=_VISION)
    return _llama4(text_config(config), names)


def _llama4(config: Mapping[str, Any], names: Names) -> DecoderSpec:
    config = with_defaults(
        renamed(config, {"num_local_experts": "num_experts"}), attention_chunk_size=8192, head_dim=128
    )
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    size, sparse = reader.positive_int("intermediate_size"), _sparse_layers(reader)
    moe = MoE(
        num_experts=reader.positive_int("num_local_experts", 16),
        expert_size=size,
        activation=reader.activation(),
        router=Router(top_k=reader.positive_int("num_experts_per_tok", 1), scoring="sigmoid_after"),
        weight_input=True,
        shared=shared_mlp(config, size),
    )
    dense = gated_mlp(with_defaults(config, intermediate_size_mlp=16384), field="intermediate_size_mlp")
    layers = [
        pre_norm(mixer, moe if layer in sparse else dense, norm)
        for layer, mixer in enumerate(_mixers(config))
    ]
    return decoder(config, layers, final_norm=norm, names=names)


def _mixers(config: Mapping[str, Any]) -> list[Attention]:
    """Most layers see a chunk and turn; those without rope see everything, at a temperature."""
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    plain = attention(config, qkv_bias=bias, output_bias=bias, theta=500000.0, interleaved=True)
    normed = QKNorm(norm=replace(rms_norm(config, default=1e-5), weight=False), after_rope=True)
    chunk = reader.positive_int("attention_chunk_size") if reader.has("attention_chunk_size") else None
    temperature = None
    if reader.boolean("attn_temperature_tuning", True):
        temperature = QueryTemperature(
            factor=reader.number("attn_scale", 0.1), length=reader.positive_int("floor_scale", 8192), shift=1
        )
    turning = replace(plain, qk_norm=normed if reader.boolean("use_qk_norm", True) else None)
    still = replace(plain, rope=None, temperature=temperature)
    has_rope = _rope_layers(reader)
    kinds = layer_kinds(config) or [_CHUNKED if turns and chunk else FULL for turns in has_rope]
    mixers = []
    for kind, turns in zip(kinds, has_rope, strict=True):
        if kind not in (FULL, _CHUNKED):
            raise UnsupportedConfig("layer_types", f"{kind!r} is neither {FULL} nor {_CHUNKED}")
        mixers.append(replace(turning if turns else still, chunk=chunk if kind == _CHUNKED else None))
    return mixers


def _rope_layers(reader: ConfigReader) -> list[bool]:
    count = reader.positive_int("num_hidden_layers")
    if not (reader.has("no_rope_layers") and reader.sequence("no_rope_layers")):
        every = reader.positive_int("no_rope_layer_interval", 4)
        return [(layer + 1) % every != 0 for layer in range(count)]
    flags = reader.sequence("no_rope_layers")  # Despite the name, 1 stands for rope.
    if len(flags) != count:
        raise ConfigError("no_rope_layers", f"has {len(flags)} entries for {count} layers")
    return [bool(flag) for flag in flags]


def _sparse_layers(reader: ConfigReader) -> set[int]:
    if reader.has("moe_layers"):
        return set(reader.sequence("moe_layers"))
    every = reader.positive_int("interleave_moe_layer_step", 1)
    return set(range(every - 1, reader.positive_int("num_hidden_layers"), every))
