"""Owns the spec of dense Qwen3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.qwen2 import layer_windows
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec

# What transformers' Qwen3Config assumes; it is not hidden_size / num_attention_heads.
_DEFAULT_HEAD_SIZE = 128


@architecture("Qwen3ForCausalLM")
def qwen3(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3: Qwen2 without biases, with RMS norms over each query and key head."""
    bias = ConfigReader(config).boolean("attention_bias", False)
    norm, mlp = rms_norm(config), gated_mlp(config)

    def mixer(window: int | None) -> Attention:
        return attention(
            config,
            default_head_size=_DEFAULT_HEAD_SIZE,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm(norm=norm),
            sliding_window=window,
        )

    layers = [pre_norm(mixer(window), mlp, norm) for window in layer_windows(config)]
    return decoder(config, layers, final_norm=norm)
