"""Owns the specs of Ministral; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import attention_windows, with_defaults
from llm_models.architectures.mistral import mistral
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.attention import QueryTemperature
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_ROPE3 = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_VISION = (r"(model\.)?(vision_tower|multi_modal_projector)\..*",)


@architecture("MinistralForCausalLM")
def ministral(config: Mapping[str, Any]) -> DecoderSpec:
    """Ministral 8B: Mistral with a window over the layers that `layer_types` names."""
    config = with_defaults(config, sliding_window=4096)
    norm, mlp, mixer = rms_norm(config), gated_mlp(config), attention(config)
    windows = attention_windows(config, lambda _: config["sliding_window"] is None)
    layers = [pre_norm(replace(mixer, sliding_window=window), mlp, norm) for window in windows]
    return decoder(config, layers, final_norm=norm)


@architecture("Ministral3ForCausalLM")
def ministral3(config: Mapping[str, Any]) -> DecoderSpec:
    """Ministral 3: Mistral whose queries grow with their position."""
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _ROPE3}
    config = with_defaults(config, head_dim=128)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    mixer = attention(config, sliding_window=window)
    rope = reader.section("rope_parameters")
    if rope is not None and rope.has("llama_4_scaling_beta"):
        temperature = QueryTemperature(
            factor=rope.number("llama_4_scaling_beta"),
            length=rope.positive_int("original_max_position_embeddings"),
        )
        mixer = replace(mixer, temperature=temperature)
    layer = pre_norm(mixer, gated_mlp(config), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)


@architecture("Mistral3ForConditionalGeneration")
def mistral3_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of multimodal Mistral 3 models: Mistral Small 3.1 and 3.2, Ministral 3."""
    text = text_config(config)
    kind = text.get("model_type")
    if kind not in ("mistral", "ministral3"):
        raise UnsupportedConfig("text_config.model_type", f"{kind!r} is not supported")
    spec = (mistral if kind == "mistral" else ministral3)(text)
    prefixes = ("language_model.model.", "model.language_model.")
    return replace(spec, names=text_names(LLAMA_NAMES, *prefixes, harmless=_VISION))
