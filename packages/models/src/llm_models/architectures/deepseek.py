"""Owns the specs of DeepSeek V2 and V3: latent attention and grouped experts."""

import math
from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, gated_mlp, rms_norm
from llm_models.architectures.mixtures import further_layers, shared_mlp
from llm_models.blocks.latent_attention import LatentAttention
from llm_models.blocks.layer import LayerSpec, pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.rope import rope_from_config
from llm_models.spec import DecoderSpec

EXPERT_NAMES = {
    "mlp.gate": "mlp.router",
    "mlp.gate.e_score_correction_bias": "mlp.router.correction",
    "mlp.experts.{e}.gate_proj": "mlp.experts.{e}.gate",
    "mlp.experts.{e}.up_proj": "mlp.experts.{e}.up",
    "mlp.experts.{e}.down_proj": "mlp.experts.{e}.down",
    "mlp.shared_experts.gate_proj": "mlp.shared.gate",
    "mlp.shared_experts.up_proj": "mlp.shared.up",
    "mlp.shared_experts.down_proj": "mlp.shared.down",
}
"""Names of experts with a router called `gate` and a shared MLP."""

LATENT_NAMES = {
    "self_attn.q_a_proj": "attention.query_down",
    "self_attn.q_a_layernorm": "attention.query_norm",
    "self_attn.q_b_proj": "attention.query",
    "self_attn.kv_a_proj_with_mqa": "attention.latent",
    "self_attn.kv_a_layernorm": "attention.latent_norm",
    "self_attn.kv_b_proj": "attention.key_value",
}
"""Names of latent attention."""

# The reference leaves it at its default, whatever the config says of the other norms.
_LATENT_NORM = Norm(eps=1e-6)


def latent_attention(config: Mapping[str, Any], *, interleaved: bool = True) -> LatentAttention:
    """Reads latent attention with the field names of DeepSeek."""
    reader = ConfigReader(config)
    plain, turning = reader.positive_int("qk_nope_head_dim"), reader.positive_int("qk_rope_head_dim")
    rope = rope_from_config(
        {**config, "partial_rotary_factor": None},
        head_size=turning,
        max_positions=reader.positive_int("max_position_embeddings"),
        interleaved=interleaved,
    )
    return LatentAttention(
        num_heads=reader.positive_int("num_attention_heads"),
        plain_size=plain,
        rope_size=turning,
        value_size=reader.positive_int("v_head_dim"),
        latent_size=reader.positive_int("kv_lora_rank"),
        query_latent_size=reader.positive_int("q_lora_rank") if reader.has("q_lora_rank") else None,
        scale=(plain + turning) ** -0.5 * _yarn_scale(reader),
        norm=_LATENT_NORM,
        rope=rope,
        bias=reader.boolean("attention_bias", False),
    )


def _yarn_scale(reader: ConfigReader) -> float:
    """YaRN scales queries and keys both; DeepSeek does it in the scores."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    if section is None or section.string("rope_type", section.string("type", "default")) == "default":
        return 1.0
    all_dimensions = section.number("mscale_all_dim", 0.0)
    if not all_dimensions:
        return 1.0
    factor = section.positive_float("factor")
    if factor <= 1:
        return 1.0
    return (0.1 * all_dimensions * math.log(factor) + 1.0) ** 2


def _layers(config: Mapping[str, Any], mixer: LatentAttention, moe: MoE) -> list[LayerSpec]:
    reader, norm = ConfigReader(config), rms_norm(config)
    dense, first = gated_mlp(config), reader.whole_number("first_k_dense_replace", 0)
    count = reader.positive_int("num_hidden_layers")
    return [pre_norm(mixer, dense if index < first else moe, norm) for index in range(count)]


def grouped_moe(config: Mapping[str, Any], router: Router) -> MoE:
    """Reads experts and the shared MLP with the field names of DeepSeek."""
    reader = ConfigReader(config)
    size = reader.positive_int("moe_intermediate_size")
    shared = reader.whole_number("n_shared_experts", 0)
    return MoE(
        num_experts=reader.positive_int("n_routed_experts"),
        expert_size=size,
        activation=reader.activation(),
        router=router,
        shared=shared_mlp(config, size * shared),
    )


@architecture("DeepseekV2ForCausalLM")
def deepseek_v2(config: Mapping[str, Any]) -> DecoderSpec:
    """DeepSeek-V2, V2-Lite and V2.5."""
    reader = ConfigReader(config)
    method = reader.string("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedConfig("topk_method", f"{method!r} is neither greedy nor group_limited_greedy")
    grouped = method == "group_limited_greedy"
    router = Router(
        top_k=reader.positive_int("num_experts_per_tok"),
        scale=reader.positive_float("routed_scaling_factor", 1.0),
        groups=reader.positive_int("n_group") if grouped else None,
        top_groups=reader.positive_int("topk_group") if grouped else None,
        group_score="max",
        in_float32=True,
    )
    layers = _layers(config, latent_attention(config), grouped_moe(config, router))
    names = LLAMA_NAMES.but(
        {**LATENT_NAMES, **EXPERT_NAMES}, without=("self_attn.k_proj", "self_attn.v_proj")
    )
    return decoder(config, layers, final_norm=rms_norm(config), names=names)


@architecture("DeepseekV3ForCausalLM")
def deepseek_v3(config: Mapping[str, Any]) -> DecoderSpec:
    """DeepSeek-V3, V3.1 and R1, and others of the layout (Kimi K2)."""
    reader = ConfigReader(config)
    router = Router(
        top_k=reader.positive_int("num_experts_per_tok"),
        scoring="sigmoid",
        correction=True,
        groups=reader.positive_int("n_group", 1),
        top_groups=reader.positive_int("topk_group", 1),
        renormalize=reader.boolean("norm_topk_prob", True),
        scale=reader.positive_float("routed_scaling_factor", 1.0),
        in_float32=True,
    )
    mixer = latent_attention(config, interleaved=reader.boolean("rope_interleave", True))
    layers = _layers(config, mixer, grouped_moe(config, router))
    names = LLAMA_NAMES.but(
        {**LATENT_NAMES, **EXPERT_NAMES},
        without=("self_attn.k_proj", "self_attn.v_proj"),
        harmless=further_layers(config),
    )
    return decoder(config, layers, final_norm=rms_norm(config), names=names)
