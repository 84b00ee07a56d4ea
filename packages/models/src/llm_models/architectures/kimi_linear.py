"""Owns the specs of Kimi Linear and Bailing's hybrids (Ling): delta rule and latent attention, experts.

Either kind of mixer is called `attention` here, as checkpoints give both the same names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, gated_mlp, renamed, rms_norm
from llm_models.architectures.deepseek import EXPERT_NAMES, LATENT_NAMES, grouped_moe, latent_attention
from llm_models.architectures.hybrid_parts import FULL, LINEAR, hybrid_kinds, hybrid_names
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.delta_rule import DeltaRule
from llm_models.blocks.latent_attention import LatentAttention
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Names, Target
from llm_models.spec import DecoderSpec

_FIELDS = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_LATENT_NORM = Norm(eps=1e-6)  # Whatever rms_norm_eps says.

_DELTA_NAMES: Mapping[str, Target] = {
    "self_attn.q_conv1d": "attention.conv_query",
    "self_attn.k_conv1d": "attention.conv_key",
    "self_attn.v_conv1d": "attention.conv_value",
    "self_attn.b_proj": "attention.beta",
    "self_attn.dt_bias": "attention.step_bias",
    "self_attn.A_log": "attention.A_log",
    "self_attn.o_norm": "attention.norm",
}
_KIMI_NAMES = hybrid_names(
    LLAMA_NAMES,
    {
        **LATENT_NAMES,
        **_DELTA_NAMES,
        "self_attn.f_a_proj": "attention.decay_down",
        "self_attn.f_b_proj": "attention.decay",
        "self_attn.g_a_proj": "attention.gate_down",
        "self_attn.g_b_proj": "attention.gate",
        **{name.replace("mlp.", "block_sparse_moe."): target for name, target in EXPERT_NAMES.items()},
        "block_sparse_moe.experts.{e}.w1": "mlp.experts.{e}.gate",
        "block_sparse_moe.experts.{e}.w3": "mlp.experts.{e}.up",
        "block_sparse_moe.experts.{e}.w2": "mlp.experts.{e}.down",
        # As transformers saves the dense layers.
        "block_sparse_moe.gate_proj": "mlp.gate",
        "block_sparse_moe.up_proj": "mlp.up",
        "block_sparse_moe.down_proj": "mlp.down",
    },
)


@architecture("KimiLinearForCausalLM")
def kimi_linear(config: Mapping[str, Any]) -> DecoderSpec:
    """Kimi Linear: a decay per key dimension; latent attention without positions."""
    config = renamed(_with_linear_fields(config), _FIELDS)
    config = with_defaults(config, n_routed_experts=256, moe_intermediate_size=1024, n_shared_experts=1)
    reader = ConfigReader(config)
    if not reader.boolean("mla_use_nope", True):
        raise UnsupportedConfig("mla_use_nope", "latent attention with positions is not supported")
    mixers: dict[str, BlockSpec] = {
        FULL: replace(_latent(config), rope=None),
        LINEAR: _delta_rule(
            reader,
            heads=reader.positive_int("linear_num_heads", 32),
            size=reader.positive_int("linear_head_dim", 128),
            conv_width=reader.positive_int("linear_conv_kernel_dim", 4),
            is_low_rank=True,
        ),
    }
    count = reader.positive_int("num_hidden_layers")
    default = _stated_kinds(reader, count) or [FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    layers = _layers(config, mixers, hybrid_kinds(config, default), first_dense=1)
    return decoder(config, layers, final_norm=rms_norm(config, default=1e-5), names=_KIMI_NAMES)


@architecture("BailingHybridForCausalLM")
def bailing_hybrid(config: Mapping[str, Any]) -> DecoderSpec:
    """Ling 3: a bounded decay per key dimension, and a gate on each head of the latent attention."""
    config = renamed(config, _FIELDS)
    config = with_defaults(
        config, n_routed_experts=512, moe_intermediate_size=768, n_shared_experts=1, rope_theta=6e6
    )
    reader = ConfigReader(config)
    delta = _delta_rule(
        reader,
        heads=reader.positive_int("num_attention_heads"),
        # Transformers overwrites head_dim when it saves a config.
        size=reader.positive_int("linear_head_dim", reader.positive_int("head_dim", 128)),
        conv_width=reader.positive_int("short_conv_kernel_size", 4),
        is_low_rank=False,
    )
    if reader.boolean("kda_safe_gate", True):
        delta = replace(delta, decay_bound=reader.number("kda_lower_bound", -5.0))
    mixers: dict[str, BlockSpec] = {FULL: replace(_latent(config), gate=True), LINEAR: delta}
    count, every = reader.positive_int("num_hidden_layers"), reader.positive_int("layer_group_size", 6)
    kinds = hybrid_kinds(config, [LINEAR if (i + 1) % every else FULL for i in range(count)])
    layers = _layers(config, mixers, kinds, first_dense=2)
    return decoder(config, layers, final_norm=rms_norm(config), names=_bailing_names(count))


def _bailing_names(layers: int) -> Names:
    mixer_names = {
        **{name: target for name, target in LLAMA_NAMES.inside.items() if name.startswith("self_attn.")},
        **LATENT_NAMES,
        **_DELTA_NAMES,
        "self_attn.f_proj": "attention.decay",
        "self_attn.g_proj": "attention.gate",
        "self_attn.dense": "attention.output",
    }
    names = hybrid_names(
        LLAMA_NAMES,
        {
            **{name.replace("self_attn.", "attention."): target for name, target in mixer_names.items()},
            **EXPERT_NAMES,
            "mlp.gate.expert_bias": "mlp.router.correction",
        },
    )
    # Layers past the last are for predicting several tokens at once; they are not used here.
    further = (rf"model\.layers\.{layers}\..*",)
    return names.but(top={"model.word_embeddings": "embedding"}, harmless=further)


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    return replace(latent_attention(config), norm=_LATENT_NORM)


def _delta_rule(
    reader: ConfigReader, *, heads: int, size: int, conv_width: int, is_low_rank: bool
) -> DeltaRule:
    if reader.activation() != "silu":
        raise UnsupportedConfig("hidden_act", "the delta rule's convolution has silu only")
    return DeltaRule(
        num_key_heads=heads,
        num_value_heads=heads,
        key_size=size,
        value_size=size,
        conv_width=conv_width,
        norm=Norm(eps=reader.positive_float("rms_norm_eps", 1e-6)),
        channel_decay=True,
        gate_activation="sigmoid",
        gate_rank=size if is_low_rank else None,
        decay_rank=size if is_low_rank else None,
        name="attention",
    )


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    scoring = reader.string("moe_router_activation_func", reader.string("score_function", "sigmoid"))
    if scoring != "sigmoid":
        raise UnsupportedConfig("moe_router_activation_func", f"{scoring!r} is not sigmoid")
    router = Router(
        top_k=reader.positive_int("num_experts_per_tok", 8),
        scoring="sigmoid",
        correction=True,
        groups=reader.positive_int("n_group", 1),
        top_groups=reader.positive_int("topk_group", 1),
        renormalize=reader.boolean("norm_topk_prob", True),
        scale=reader.positive_float("routed_scaling_factor"),
        in_float32=True,
    )
    return grouped_moe(config, router)


def _layers(
    config: Mapping[str, Any], mixers: Mapping[str, BlockSpec], kinds: list[str], *, first_dense: int
) -> list[Layer]:
    reader, norm = ConfigReader(config), rms_norm(config)
    if reader.positive_int("moe_layer_freq", 1) != 1:
        raise UnsupportedConfig("moe_layer_freq", "experts must be in every layer past the dense ones")
    first = reader.whole_number("first_k_dense_replace", first_dense)
    sparse = ["dense" if index < first else "sparse" for index in range(len(kinds))]
    if reader.has("mlp_layer_types"):
        sparse = reader.sequence("mlp_layer_types")
    if len(sparse) != len(kinds) or set(sparse) - {"dense", "sparse"}:
        raise ConfigError("mlp_layer_types", f"must say dense or sparse for each of {len(kinds)} layers")
    feed_forwards: dict[str, BlockSpec] = {"dense": gated_mlp(config), "sparse": _moe(config)}
    return [
        Layer(
            (
                Branch(blocks=(mixers[kind],), pre=norm, name="mixer"),
                Branch(blocks=(feed_forwards[width],), pre=norm),
            )
        )
        for kind, width in zip(kinds, sparse, strict=True)
    ]


def _with_linear_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the delta rule's sizes, which checkpoints state in a section of their own."""
    section = ConfigReader(config).section("linear_attn_config")
    if section is None:
        return config
    sizes = {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads"}
    sizes["linear_conv_kernel_dim"] = "short_conv_kernel_size"
    stated = {new: section.positive_int(old) for new, old in sizes.items() if section.has(old)}
    return {**config, **stated}


def _stated_kinds(reader: ConfigReader, count: int) -> list[str] | None:
    """Checkpoints name the layers of each kind, counted from 1."""
    section = reader.section("linear_attn_config")
    if section is None or not section.has("full_attn_layers"):
        return None
    full = set(section.sequence("full_attn_layers"))
    return [FULL if layer in full else LINEAR for layer in range(1, count + 1)]
