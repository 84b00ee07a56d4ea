"""Owns the spec of Hunyuan with experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, renamed, rms_norm
from llm_models.architectures.hunyuan import HUNYUAN_NAMES, hunyuan_mixer
from llm_models.architectures.mixtures import expert_names, shared_mlp
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.spec import DecoderSpec

_NAMES = HUNYUAN_NAMES.but(expert_names(router="gate.wg", shared="shared_mlp"))


@architecture("HunYuanMoEV1ForCausalLM")
def hunyuan_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Hunyuan-A13B: experts beside a shared one of the same width."""
    config = renamed(config, {"moe_topk": "num_experts_per_tok", "num_experts": "num_local_experts"})
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    size = reader.positive_int("intermediate_size")
    for field, wanted in (("moe_intermediate_size", size), ("num_shared_expert", 1)):
        if any(value != wanted for value in _each_layer(reader, field, wanted)):
            raise UnsupportedConfig(field, f"is not {wanted} in every layer")
    mixer = hunyuan_mixer(config)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 1),
        expert_size=size,
        activation=reader.activation(),
        router=Router(top_k=1, renormalize=True, in_float32=True),
        shared=shared_mlp(config, size),
    )
    layers = [
        pre_norm(mixer, replace(moe, router=replace(moe.router, top_k=top_k)), norm)
        for top_k in _each_layer(reader, "moe_topk", 1)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _each_layer(reader: ConfigReader, field: str, default: int) -> list[int]:
    """A number for all layers, or a list with one a layer."""
    count = reader.positive_int("num_hidden_layers")
    try:
        return [reader.positive_int(field, default)] * count
    except ConfigError:
        values = reader.sequence(field)
    if len(values) != count or not all(type(value) is int and value > 0 for value in values):
        raise ConfigError(field, f"must be {count} integers above 0, not {values}")
    return values
