"""Owns the spec of the Code World Model; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import attention_windows, with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec

_DEFAULT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@architecture("CwmForCausalLM")
def cwm(config: Mapping[str, Any]) -> DecoderSpec:
    """CWM: Llama with three layers with a window to one without."""
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config = {**config, "rope_parameters": _DEFAULT_ROPE}
    config = with_defaults(config, sliding_window=8192, head_dim=128)
    reader, norm, mixer = ConfigReader(config), rms_norm(config, default=1e-5), attention(config)
    mlp = gated_mlp(config, bias=reader.boolean("mlp_bias", False))
    windows = attention_windows(config, lambda layer: layer % 4 == 0)
    layers = [pre_norm(replace(mixer, sliding_window=window), mlp, norm) for window in windows]
    return decoder(config, layers, final_norm=norm)
