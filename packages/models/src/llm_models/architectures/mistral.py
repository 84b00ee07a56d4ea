"""Owns the spec of Mistral; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec

# What transformers' MistralConfig assumes where a config leaves the field out; null means no window.
_DEFAULT_WINDOW = 4096


@architecture("MistralForCausalLM")
def mistral(config: Mapping[str, Any]) -> DecoderSpec:
    """Mistral 7B and its relatives: Llama with a sliding window over every layer (null in later releases)."""
    reader, norm = ConfigReader(config), rms_norm(config)
    window: int | None = _DEFAULT_WINDOW
    if reader.states("sliding_window"):
        window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    layer = pre_norm(attention(config, sliding_window=window), gated_mlp(config), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)
