"""Owns the specs of LFM2 and LFM2-MoE: short convolutions, and attention in some layers."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_kinds, renamed, rms_norm
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.short_conv import ShortConv
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, rows
from llm_models.spec import DecoderSpec

NAMES = LLAMA_NAMES.but(
    {
        "operator_norm": "mixer.norm",
        "self_attn.out_proj": "attention.output",
        "self_attn.q_layernorm": "attention.query_norm",
        "self_attn.k_layernorm": "attention.key_norm",
        "conv.in_proj": rows("conv_mixer.before", "conv_mixer.after", "conv_mixer.x"),
        "conv.conv": "conv_mixer.conv",
        "conv.out_proj": "conv_mixer.output",
        "ffn_norm": "mlp.norm",
        "feed_forward.w1": "mlp.gate",
        "feed_forward.w3": "mlp.up",
        "feed_forward.w2": "mlp.down",
    },
    top={"model.embedding_norm": "final_norm"},
)
"""Names of LFM2; a norm before either kind of mixer is `mixer.norm`."""

_MOE_NAMES = NAMES.but(
    {
        "feed_forward.gate": "mlp.router",
        "feed_forward.expert_bias": "mlp.router.correction",
        "feed_forward.experts.{e}.w1": "mlp.experts.{e}.gate",
        "feed_forward.experts.{e}.w3": "mlp.experts.{e}.up",
        "feed_forward.experts.{e}.w2": "mlp.experts.{e}.down",
    }
)


def mixers(config: Mapping[str, Any]) -> list[Branch]:
    """The first branch of every layer: attention or a short convolution, as `layer_types` says."""
    reader, norm = ConfigReader(config), rms_norm(config, "norm_eps", default=1e-5)
    count = reader.positive_int("num_hidden_layers")
    kinds = layer_kinds(config)
    if kinds is None:
        full = set(reader.sequence("full_attn_idxs") if reader.has("full_attn_idxs") else range(count))
        kinds = ["full_attention" if index in full else "conv" for index in range(count)]
    blocks: dict[str, BlockSpec] = {
        "full_attention": attention(config, qk_norm=QKNorm(norm=norm), theta=1e6),
        "conv": ShortConv(
            inner_size=reader.positive_int("hidden_size"),
            conv_width=reader.positive_int("conv_L_cache", 3),
            bias=reader.boolean("conv_bias", False),
        ),
    }
    for kind in kinds:
        if kind not in blocks:
            raise UnsupportedConfig("layer_types", f"{kind!r} is neither full_attention nor conv")
    return [Branch(blocks=(blocks[kind],), pre=norm, name="mixer") for kind in kinds]


def dense_mlp(config: Mapping[str, Any]) -> MLP:
    """The feed-forward, whose width may be adjusted from the one stated."""
    reader = ConfigReader(renamed(config, {"intermediate_size": "block_ff_dim"}))
    size = reader.positive_int("intermediate_size", 12288)
    if reader.boolean("block_auto_adjust_ff_dim", True):
        size = int(2 * size / 3)
        if reader.has("block_ffn_dim_multiplier"):
            size = int(reader.positive_float("block_ffn_dim_multiplier") * size)
        multiple = reader.positive_int("block_multiple_of", 256)
        size = multiple * -(-size // multiple)
    return MLP(intermediate_size=size)


@architecture("Lfm2ForCausalLM")
def lfm2(config: Mapping[str, Any]) -> DecoderSpec:
    """LFM2."""
    config = renamed(config, {"tie_word_embeddings": "tie_embedding"})
    norm, mlp = rms_norm(config, "norm_eps", default=1e-5), dense_mlp(config)
    layers = [Layer((mixer, Branch(blocks=(mlp,), pre=norm))) for mixer in mixers(config)]
    return decoder(config, layers, final_norm=norm, names=NAMES, tied=True)


@architecture("Lfm2MoeForCausalLM")
def lfm2_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """LFM2-MoE: experts in all but the first layers."""
    config = renamed(config, {"tie_word_embeddings": "tie_embedding"})
    reader, norm = ConfigReader(config), rms_norm(config, "norm_eps", default=1e-5)
    dense = MLP(intermediate_size=reader.positive_int("intermediate_size", 7168))
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 32),
        expert_size=reader.positive_int("moe_intermediate_size", 1792),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 4),
            scoring="sigmoid",
            correction=reader.boolean("use_expert_bias", True),
            renormalize=reader.boolean("norm_topk_prob", True),
            renormalize_eps=1e-6,
            scale=reader.positive_float("routed_scaling_factor", 1.0),
        ),
    )
    first = reader.whole_number("num_dense_layers", 2)
    layers = [
        Layer((mixer, Branch(blocks=(dense if index < first else moe,), pre=norm)))
        for index, mixer in enumerate(mixers(config))
    ]
    return decoder(config, layers, final_norm=norm, names=_MOE_NAMES, tied=True)
