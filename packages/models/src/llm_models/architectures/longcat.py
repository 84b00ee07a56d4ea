"""Owns the spec of LongCat Flash; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, gated_mlp, rms_norm
from llm_models.architectures.deepseek import latent_attention
from llm_models.architectures.mixtures import PROJECTIONS, expert_names
from llm_models.blocks.latent_attention import LatentAttention
from llm_models.blocks.layer import Branch
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.shortcut_layer import ShortcutLayer
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Names, Target
from llm_models.spec import DecoderSpec

_PARTS = {
    "q_a_proj": "query_down",
    "q_a_layernorm": "query_norm",
    "q_b_proj": "query",
    "kv_a_proj_with_mqa": "latent",
    "kv_a_layernorm": "latent_norm",
    "kv_b_proj": "key_value",
    "o_proj": "output",
}
# Each layer has two attention blocks and two dense feed-forwards; the mixture is a shortcut past the second.
_ATTENTION, _DENSE, _MIXTURE = ("attention", "attention_two"), ("mlp", "mlp_two"), "mixture"


def _names(experts: int, zero_experts: int) -> Names:
    mixture = {
        name: str(target).replace("mlp.", f"{_MIXTURE}.", 1)
        for name, target in expert_names(router="router.classifier").items()
    }
    names: dict[str, Target] = {
        **mixture,
        "mlp.router.e_score_correction_bias": f"{_MIXTURE}.router.correction",
    }
    for index, (attention, mlp) in enumerate(zip(_ATTENTION, _DENSE, strict=True)):
        names[f"input_layernorm.{index}"] = f"{attention}.norm"
        names[f"post_attention_layernorm.{index}"] = f"{mlp}.norm"
        names |= {f"self_attn.{index}.{part}": f"{attention}.{ours}" for part, ours in _PARTS.items()}
        for part, ours in zip(PROJECTIONS, ("gate", "up", "down"), strict=True):
            names[f"mlps.{index}.{part}"] = f"{mlp}.{ours}"
    # transformers saves tensors for experts that return their input; layers for further tokens are not used.
    unused = "|".join(str(experts + index) for index in range(zero_experts)) or "none"
    harmless = (rf"model\.layers\.\d+\.mlp\.experts\.({unused})\..*", r"model\.mtp\..*")
    return replace(LLAMA_NAMES, inside=names, harmless=LLAMA_NAMES.harmless + harmless)


@architecture("LongcatFlashForCausalLM")
def longcat_flash(config: Mapping[str, Any]) -> DecoderSpec:
    """LongCat Flash: latent attention, and experts of which some return their input."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    reader.refuse("router_bias", "the reference does not apply it")
    kind = reader.string("zero_expert_type", "identity")
    if kind != "identity":
        raise UnsupportedConfig("zero_expert_type", f"{kind!r} is not identity")
    experts = reader.positive_int("n_routed_experts", 512)
    zero_experts = reader.whole_number("zero_expert_num", 0)
    mixture = MoE(
        num_experts=experts,
        expert_size=reader.positive_int("expert_ffn_hidden_size", 2048),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("moe_topk", 12),
            correction=True,
            scale=reader.positive_float("routed_scaling_factor", 6.0),
            in_float32=True,
        ),
        zero_experts=zero_experts,
        name=_MIXTURE,
    )
    mixer = _mixer(config)
    dense = gated_mlp(config, field="ffn_hidden_size")
    first, second = (replace(mixer, name=name) for name in _ATTENTION)
    layer = ShortcutLayer(
        before=(Branch(blocks=(first,), pre=norm),),
        norm=norm,
        near=dense,
        far=mixture,
        after=(
            Branch(blocks=(second,), pre=norm),
            Branch(blocks=(replace(dense, name=_DENSE[1]),), pre=norm),
        ),
    )
    layers = [layer] * reader.positive_int("num_layers")
    return decoder(config, layers, final_norm=norm, names=_names(experts, zero_experts))


def _mixer(config: Mapping[str, Any]) -> LatentAttention:
    reader, mixer = ConfigReader(config), latent_attention(config)
    width = reader.positive_int("hidden_size")
    if mixer.query_latent_size is None:
        raise UnsupportedConfig("q_lora_rank", "is missing")
    for field in ("mla_scale_q_lora", "mla_scale_kv_lora"):
        if not reader.boolean(field, True):
            raise UnsupportedConfig(field, "is false")
    return replace(
        mixer,
        query_scale=(width / mixer.query_latent_size) ** 0.5,
        latent_scale=(width / mixer.latent_size) ** 0.5,
    )
