"""Owns the specs of Granite's mixtures of experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import renamed, rms_norm
from llm_models.architectures.granite import granite_decoder, granite_mixer, scaled_layer, sink_mixers
from llm_models.architectures.layouts import with_defaults
from llm_models.architectures.mixtures import shared_mlp, stacked_names
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, rows
from llm_models.spec import DecoderSpec

_PLACE = "block_sparse_moe"
_NAMES = LLAMA_NAMES.but(
    {
        f"{_PLACE}.router.layer": "mlp.router",
        **stacked_names(f"{_PLACE}.input_linear.weight", f"{_PLACE}.output_linear.weight"),
        "shared_mlp.input_linear": rows("mlp.shared.gate", "mlp.shared.up"),
        "shared_mlp.output_linear": "mlp.shared.down",
    }
)
_SWA_NAMES = _NAMES.but(
    {
        f"{_PLACE}.router": "mlp.router",
        **stacked_names(f"{_PLACE}.experts.gate_up_proj", f"{_PLACE}.experts.down_proj"),
        "self_attn.sinks": "attention.sinks",
    }
)


@architecture("GraniteMoeForCausalLM")
def granite_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite 3 1B-A400M and 3B-A800M: Granite with experts."""
    return granite_moe_shared({**config, "shared_intermediate_size": 0})


@architecture("GraniteMoeSharedForCausalLM")
def granite_moe_shared(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite with experts beside a shared MLP."""
    reader, norm = ConfigReader(config), rms_norm(config)
    layer = scaled_layer(reader, granite_mixer(config, 1.0), granite_experts(config), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    scale = 1 / reader.positive_float("logits_scaling", 1.0)
    return granite_decoder(config, layers, norm, scale, _NAMES)


@architecture("GraniteMoeSWAForCausalLM")
def granite_moe_swa(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite with experts, sinks, windows and a rope base a layer."""
    config = with_defaults(config, sliding_window=128)
    reader, norm, moe = ConfigReader(config), rms_norm(config), granite_experts(config)
    layers = [scaled_layer(reader, mixer, moe, norm) for mixer in sink_mixers(config)]
    scale = 1 / reader.positive_float("logits_scaling", 1.0)
    return granite_decoder(config, layers, norm, scale, _SWA_NAMES)


def granite_experts(config: Mapping[str, Any]) -> MoE:
    """Reads the mixture."""
    reader = ConfigReader(renamed(config, {"num_local_experts": "num_experts"}))
    return MoE(
        num_experts=reader.positive_int("num_local_experts", 8),
        expert_size=reader.positive_int("intermediate_size"),
        activation=reader.activation(),
        router=Router(top_k=reader.positive_int("num_experts_per_tok", 2), scoring="softmax_after"),
        shared=shared_mlp(config, reader.whole_number("shared_intermediate_size", 0)),
    )
