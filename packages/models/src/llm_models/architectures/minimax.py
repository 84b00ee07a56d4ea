"""Owns the spec of MiniMax Text: Lightning Attention, softmax attention in some layers, experts in all."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import FULL, LINEAR, hybrid_kinds, hybrid_names
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.linear_attention import LinearAttention
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, Names, groups
from llm_models.spec import DecoderSpec

# Decays that follow from the config, which transformers saves as well.
_HARMLESS = (r"model\.layers\.\d+\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",)


@architecture("MiniMaxForCausalLM")
def minimax(config: Mapping[str, Any]) -> DecoderSpec:
    """MiniMax Text 01 and M1: the normed input itself is added to, with a factor each side."""
    config = with_defaults(config, num_key_value_heads=8)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    reader.refuse("sliding_window", "MiniMax's attention has no window")
    full, moe = attention(config, theta=1e6), _moe(config)
    count = reader.positive_int("num_hidden_layers")
    kinds = hybrid_kinds(config, [FULL if (index + 1) % 2 else LINEAR for index in range(count)])
    layers = []
    for index, kind in enumerate(kinds):
        mixer: BlockSpec = full
        if kind == LINEAR:
            slopes = _slopes(full.num_heads, index, count)
            mixer = LinearAttention(
                head_size=full.head_size,
                slopes=slopes,
                activation=reader.activation(),
                norm=Norm(eps=1e-6),
            )
        factors = "full_attn" if kind == FULL else "linear_attn"
        layers.append(
            Layer((_branch(reader, mixer, norm, factors, "mixer"), _branch(reader, moe, norm, "mlp", "mlp")))
        )
    return decoder(config, layers, final_norm=norm, names=_names(full.num_heads))


def _branch(reader: ConfigReader, block: BlockSpec, norm: Norm, factors: str, name: str) -> Branch:
    return Branch(
        blocks=(block,),
        pre=norm,
        residual_from_norm=True,
        residual_scale=reader.number(f"{factors}_alpha_factor", 1.0),
        scale=reader.number(f"{factors}_beta_factor", 1.0),
        name=name,
    )


def _slopes(heads: int, layer: int, layers: int) -> tuple[float, ...]:
    """Heads fade from fast to slow, and later layers more slowly than earlier ones."""
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(2.0 ** (-8 * (head + 1) / heads) * factor for head in range(heads))


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    return MoE(
        num_experts=reader.positive_int("num_local_experts", 8),
        expert_size=gated_mlp(config).intermediate_size,
        activation=reader.activation(),
        router=Router(top_k=reader.positive_int("num_experts_per_tok", 2), renormalize=True),
    )


def _names(heads: int) -> Names:
    return hybrid_names(
        LLAMA_NAMES,
        {
            "self_attn.qkv_proj": groups(
                heads, "linear_attention.query", "linear_attention.key", "linear_attention.value"
            ),
            "self_attn.output_gate": "linear_attention.gate",
            "self_attn.norm": "linear_attention.output_norm",
            "self_attn.out_proj": "linear_attention.output",
            "block_sparse_moe.gate": "mlp.router",
            "block_sparse_moe.experts.{e}.w1": "mlp.experts.{e}.gate",
            "block_sparse_moe.experts.{e}.w3": "mlp.experts.{e}.up",
            "block_sparse_moe.experts.{e}.w2": "mlp.experts.{e}.down",
        },
    ).but(harmless=_HARMLESS)
