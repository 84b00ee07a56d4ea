"""Owns the spec of dense Qwen3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.llama import attention, decoder, norm
from llm_models.architectures.qwen2 import layer_windows
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec

# What transformers' Qwen3Config assumes; it is not hidden_size / num_attention_heads.
_DEFAULT_HEAD_SIZE = 128


@architecture("Qwen3ForCausalLM")
def qwen3(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3: Qwen2 without biases, with RMS norms over each query and key head."""
    bias = ConfigReader(config).boolean("attention_bias", False)
    mixers = [
        attention(
            config,
            default_head_size=_DEFAULT_HEAD_SIZE,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=norm(config),
            sliding_window=window,
        )
        for window in layer_windows(config)
    ]
    return decoder(config, mixers)
