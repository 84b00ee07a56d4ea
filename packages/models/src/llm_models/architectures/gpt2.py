"""Owns the specs of GPT-2 and GPT-BigCode: learned positions, matrices stored transposed or fused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, head_size_of, layer_norm, renamed
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import Names, groups, rows, transposed
from llm_models.spec import DecoderSpec, Embedding, LearnedPositions

_FIELDS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_NAMES = Names(
    top={
        "transformer.wte": "embedding",
        "transformer.wpe": "positions",
        "transformer.ln_f": "final_norm",
        "lm_head": "head",
    },
    layer="transformer.h.{i}",
    inside={
        "ln_1": "attention.norm",
        "attn.c_attn": rows("attention.query", "attention.key", "attention.value", transposed=True),
        "attn.c_proj": transposed("attention.output"),
        "ln_2": "mlp.norm",
        "mlp.c_fc": transposed("mlp.up"),
        "mlp.c_proj": transposed("mlp.down"),
    },
    optional_prefix="transformer.",
    harmless=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
)


def _attention(config: Mapping[str, Any], kv_heads: int | None = None) -> Attention:
    reader, size = ConfigReader(config), head_size_of(config)
    heads = reader.positive_int("num_attention_heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_size=size,
        scale=size**-0.5 if reader.boolean("scale_attn_weights", True) else 1.0,
        qkv_bias=True,
        output_bias=True,
    )


def _mlp(config: Mapping[str, Any], activation: str) -> MLP:
    reader = ConfigReader(config)
    return MLP(
        intermediate_size=reader.positive_int("n_inner", 4 * reader.positive_int("hidden_size")),
        activation=reader.activation("activation_function", activation),
        gated=False,
        bias=True,
    )


def _embedding(config: Mapping[str, Any]) -> Embedding:
    reader = ConfigReader(config)
    return Embedding(
        vocab_size=reader.positive_int("vocab_size"),
        positions=LearnedPositions(count=reader.positive_int("max_position_embeddings")),
    )


@architecture("GPT2LMHeadModel")
def gpt2(config: Mapping[str, Any]) -> DecoderSpec:
    """GPT-2."""
    config = renamed(config, _FIELDS)
    reader, norm = ConfigReader(config), layer_norm(config, "layer_norm_epsilon")
    reader.refuse("add_cross_attention", "there is no encoder to attend to")
    mixer, mlp = _attention(config), _mlp(config, "gelu_new")
    by_depth = reader.boolean("scale_attn_by_inverse_layer_idx", False)
    layers = [
        pre_norm(replace(mixer, scale=mixer.scale / (index + 1)) if by_depth else mixer, mlp, norm)
        for index in range(reader.positive_int("num_hidden_layers"))
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES, embedding=_embedding(config), tied=True)


@architecture("GPTBigCodeForCausalLM")
def gpt_bigcode(config: Mapping[str, Any]) -> DecoderSpec:
    """GPT-BigCode (StarCoder, SantaCoder): GPT-2 with one head of keys and values, matrices as usual."""
    config = renamed(config, _FIELDS)
    reader, norm = ConfigReader(config), layer_norm(config, "layer_norm_epsilon")
    reader.refuse("add_cross_attention", "there is no encoder to attend to")
    is_multi_query = reader.boolean("multi_query", True)
    mixer = _attention(config, 1 if is_multi_query else None)
    layer = pre_norm(mixer, _mlp(config, "gelu_pytorch_tanh"), norm)
    qkv = ("attention.query", "attention.key", "attention.value")
    names = _NAMES.but(
        {
            "attn.c_attn": rows(*qkv) if is_multi_query else groups(mixer.num_heads, *qkv),
            "attn.c_proj": "attention.output",
            "mlp.c_fc": "mlp.up",
            "mlp.c_proj": "mlp.down",
        }
    )
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=names, embedding=_embedding(config), tied=True)
