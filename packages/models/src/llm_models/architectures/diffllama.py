"""Owns the spec of DiffLlama; knows nothing about weights or the runtime."""

import math
from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.differential_attention import DifferentialAttention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
_NAMES = LLAMA_NAMES.but({f"self_attn.{name}": f"attention.{name}" for name in _LAMBDAS})


@architecture("DiffLlamaForCausalLM")
def diffllama(config: Mapping[str, Any]) -> DecoderSpec:
    """DiffLlama: Llama with differential attention (arXiv:2410.05258)."""
    reader, norm, mlp = ConfigReader(config), rms_norm(config, default=1e-5), gated_mlp(config)
    layers = [
        pre_norm(_mixer(config, layer, norm), mlp, norm)
        for layer in range(reader.positive_int("num_hidden_layers"))
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _mixer(config: Mapping[str, Any], layer: int, norm: Norm) -> DifferentialAttention:
    plain = attention(config)
    assert plain.rope is not None
    return DifferentialAttention(
        num_heads=plain.num_heads,
        num_kv_heads=plain.num_kv_heads,
        head_size=plain.head_size,
        scale=plain.scale,
        rope=plain.rope,
        norm=Norm(eps=norm.eps, weight=False),
        initial_lambda=0.8 - 0.6 * math.exp(-0.3 * layer),
        bias=ConfigReader(config).boolean("attention_bias", False),
    )
