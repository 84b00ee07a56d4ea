"""Owns the specs of GLM-4 (two layouts of norms); knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import sandwich, with_defaults
from llm_models.architectures.phi3 import FUSED_GATE_UP
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(FUSED_GATE_UP)
_GLM4_NAMES = _NAMES.but(
    {
        "post_self_attn_layernorm": "attention.post_norm",
        "post_mlp_layernorm": "mlp.post_norm",
    }
)


@architecture("GlmForCausalLM")
def glm(config: Mapping[str, Any]) -> DecoderSpec:
    """GLM-4 9B: Llama with biases on query, key and value; half of each head turns, in neighbouring pairs."""
    norm = _norm(config)
    layer = pre_norm(_mixer(config), gated_mlp(config), norm)
    layers = [layer] * ConfigReader(config).positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)


@architecture("Glm4ForCausalLM")
def glm4(config: Mapping[str, Any]) -> DecoderSpec:
    """GLM-4-0414: GLM with norms around each block."""
    norm = _norm(config)
    layer = sandwich(_mixer(config), gated_mlp(config), norm)
    layers = [layer] * ConfigReader(config).positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_GLM4_NAMES)


def _norm(config: Mapping[str, Any]) -> Norm:
    return rms_norm(config, default=1.5625e-07)


def _mixer(config: Mapping[str, Any]) -> Attention:
    bias = ConfigReader(config).boolean("attention_bias", True)
    config = with_defaults(config, head_dim=128)
    return attention(config, qkv_bias=bias, partial=0.5, interleaved=True)
