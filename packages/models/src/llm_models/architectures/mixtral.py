"""Owns the specs of Mixtral and PhiMoE; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm, renamed, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.architectures.mixtures import expert_names
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.rope import LongRopeScaling
from llm_models.spec import DecoderSpec, Head

_NAMES = LLAMA_NAMES.but(expert_names("block_sparse_moe", parts=("w1", "w3", "w2")))


@architecture("MixtralForCausalLM")
def mixtral(config: Mapping[str, Any]) -> DecoderSpec:
    """Mixtral: Mistral with two of eight experts a token."""
    config = with_defaults(_renamed(config), num_experts=8)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    router = Router(top_k=reader.positive_int("num_experts_per_tok", 2), renormalize=True)
    layer = pre_norm(_mixer(config), _moe(config, router), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)


@architecture("PhimoeForCausalLM", "PhiMoEForCausalLM")
def phimoe(config: Mapping[str, Any]) -> DecoderSpec:
    """Phi-3.5-MoE: two experts chosen one after the other by a sparse mixer, and layer norms."""
    config = with_defaults(_renamed(config), num_experts=16)
    reader, norm = ConfigReader(config), layer_norm(config, "rms_norm_eps")
    router = Router(
        top_k=reader.positive_int("num_experts_per_tok", 2),
        scoring="sparsemixer",
        jitter_eps=reader.positive_float("router_jitter_noise", 0.01),
    )
    mixer = _with_rope_factor(reader, _mixer(config))
    layer = pre_norm(mixer, _moe(config, router), norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    head = Head(tied=False, bias=reader.boolean("lm_head_bias", False))
    return decoder(config, layers, final_norm=norm, names=_NAMES, head=head)


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    return renamed(config, {"num_experts": "num_local_experts"})


def _mixer(config: Mapping[str, Any]) -> Attention:
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    return attention(config, qkv_bias=bias, output_bias=bias, sliding_window=window, theta=1e6)


def _moe(config: Mapping[str, Any], router: Router) -> MoE:
    reader = ConfigReader(config)
    return MoE(
        num_experts=reader.positive_int("num_experts"),
        expert_size=reader.positive_int("intermediate_size"),
        activation=reader.activation(),
        router=router,
    )


def _with_rope_factor(reader: ConfigReader, mixer: Attention) -> Attention:
    """PhiMoE names the factors on cos and sin itself: one for each set of divisors."""
    rope = mixer.rope
    if rope is None or rope.scaling is None:
        return mixer
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    if section is None or not isinstance(rope.scaling, LongRopeScaling):
        raise UnsupportedConfig("rope_scaling", "PhiMoE has no other kind than longrope")
    is_long = rope.max_positions > rope.scaling.original_max_positions
    factor = section.positive_float("long_mscale" if is_long else "short_mscale")
    scaling = replace(rope.scaling, attention_factor=factor)
    return replace(mixer, rope=replace(rope, scaling=scaling))
