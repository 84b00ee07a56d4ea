"""Owns the spec of Aria's text model; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.mixtures import shared_mlp, shared_names, stacked_names
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, Names
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        "mlp.router": "mlp.router",
        **stacked_names("mlp.experts.fc1.weight", "mlp.experts.fc2.weight", transposed=True),
        **shared_names("mlp.shared_experts"),
    }
)
# What tells the vision part from the text part.
_VISION = (r"(model\.)?(vision_tower|multi_modal_projector)\..*",)


@architecture("AriaTextForCausalLM")
def aria(config: Mapping[str, Any]) -> DecoderSpec:
    """The text model of Aria alone."""
    return _aria(config, _NAMES)


@architecture("AriaForConditionalGeneration")
def aria_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal Aria."""
    names = text_names(_NAMES, "language_model.model.", "model.language_model.", harmless=_VISION)
    return _aria(text_config(config), names)


def _aria(config: Mapping[str, Any], names: Names) -> DecoderSpec:
    config = renamed(config, {"moe_num_experts": "num_experts", "moe_topk": "num_experts_per_tok"})
    reader, norm = ConfigReader(config), rms_norm(config)
    bias, size = reader.boolean("attention_bias", False), reader.positive_int("intermediate_size", 4096)
    moe = MoE(
        num_experts=reader.positive_int("moe_num_experts", 8),
        expert_size=size,  # Their activation is SiLU whatever hidden_act says.
        router=Router(top_k=reader.positive_int("moe_topk", 2), scoring="softmax_after"),
        shared=shared_mlp(
            config,
            size * reader.positive_int("moe_num_shared_experts", 2),
            bias=reader.boolean("mlp_bias", False),
        ),
    )
    layer = pre_norm(attention(config, qkv_bias=bias, output_bias=bias), moe, norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=names)
