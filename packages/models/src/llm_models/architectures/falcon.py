"""Owns the spec of Falcon's three layouts: 7B, 40B and RW."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import (
    alibi_slopes,
    attention,
    decoder,
    head_size_of,
    layer_norm,
    renamed,
)
from llm_models.blocks.layer import Branch, Layer, Normed, pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import Names, groups, rows
from llm_models.spec import DecoderSpec

_NAMES = Names(
    top={"transformer.word_embeddings": "embedding", "transformer.ln_f": "final_norm", "lm_head": "head"},
    layer="transformer.h.{i}",
    inside={
        "input_layernorm": "attention.norm",
        "ln_attn": "attention.norm",
        "self_attention.dense": "attention.output",
        "post_attention_layernorm": "mlp.norm",
        "ln_mlp": "mlp.norm",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    optional_prefix="transformer.",
    harmless=(r"(.*\.)?rotary_emb\.inv_freq",),
)


@architecture("FalconForCausalLM")
def falcon(config: Mapping[str, Any]) -> DecoderSpec:
    """Falcon 7B, 40B, 180B and RW."""
    config = renamed(config, {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"})
    reader, norm = ConfigReader(config), layer_norm(config, "layer_norm_epsilon")
    heads, bias = reader.positive_int("num_attention_heads"), reader.boolean("bias", False)
    is_new = reader.boolean("new_decoder_architecture", False)
    is_multi_query = reader.boolean("multi_query", True)
    kv_heads = reader.positive_int("num_kv_heads", heads) if is_new or not is_multi_query else 1
    mixer = attention(
        {**config, "num_key_value_heads": kv_heads, "max_position_embeddings": _positions(reader)},
        qkv_bias=bias,
        output_bias=bias,
    )
    if reader.boolean("alibi", False):
        # Falcon scales the sum of scores and distances.
        slopes = tuple(slope * head_size_of(config) ** -0.5 for slope in alibi_slopes(heads))
        mixer = replace(mixer, rope=None, alibi_slopes=slopes)
    mlp = MLP(
        intermediate_size=reader.positive_int("ffn_hidden_size", 4 * reader.positive_int("hidden_size")),
        activation=reader.activation("activation", "gelu"),
        gated=False,
        bias=bias,
    )
    if is_new and reader.positive_int("num_ln_in_parallel_attn", 2) == 2:
        layer = Layer((Branch(blocks=(Normed(block=mixer, norm=norm), Normed(block=mlp, norm=norm))),))
    elif is_new or reader.boolean("parallel_attn", True):
        layer = Layer((Branch(blocks=(mixer, mlp), pre=norm),))
    else:
        layer = pre_norm(mixer, mlp, norm)
    qkv = ("attention.query", "attention.key", "attention.value")
    fused = rows(*qkv) if kv_heads == 1 and not is_new else groups(kv_heads, *qkv)
    return decoder(
        config,
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=_NAMES.but({"self_attention.query_key_value": fused}),
        tied=True,
        max_positions=_positions(reader),
    )


def _positions(reader: ConfigReader) -> int:
    return reader.positive_int("max_position_embeddings", 2048)
