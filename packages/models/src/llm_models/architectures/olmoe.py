"""Owns the specs of Olmo's mixtures of experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import outer_norm, with_defaults
from llm_models.architectures.mixtures import expert_names
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(expert_names())
_FLEX_NAMES = _NAMES.but(
    {
        "post_attention_layernorm": "attention.post_norm",
        "post_feedforward_layernorm": "mlp.post_norm",
    },
    without=("input_layernorm",),
)


@architecture("OlmoeForCausalLM")
def olmoe(config: Mapping[str, Any]) -> DecoderSpec:
    """OLMoE: norms over whole queries and keys, which are clamped after them at times."""
    config = _renamed(config, num_experts=64, num_experts_per_tok=8)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    clip = reader.positive_float("clip_qkv") if reader.has("clip_qkv") else None
    mixer = replace(_mixer(config, norm, 10000.0), clip=clip, clip_after_norm=True)
    layer = pre_norm(mixer, _moe(config), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)


@architecture("FlexOlmoForCausalLM")
def flex_olmo(config: Mapping[str, Any]) -> DecoderSpec:
    """FlexOlmo: Olmo 2 with experts."""
    config = _renamed(config, num_experts=7, num_experts_per_tok=5)
    reader, norm = ConfigReader(config), rms_norm(config)
    layer = outer_norm(_mixer(config, norm, 500000.0), _moe(config), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_FLEX_NAMES)


def _renamed(config: Mapping[str, Any], **defaults: int) -> dict[str, Any]:
    return with_defaults(renamed(config, {"num_experts": "num_local_experts"}), **defaults)


def _mixer(config: Mapping[str, Any], norm: Norm, theta: float) -> Attention:
    bias = ConfigReader(config).boolean("attention_bias", False)
    qk_norm = QKNorm(norm=norm, over="all")
    return attention(config, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm, theta=theta)


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    return MoE(
        num_experts=reader.positive_int("num_experts"),
        expert_size=reader.positive_int("intermediate_size"),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok"),
            renormalize=reader.boolean("norm_topk_prob", False),
        ),
    )
