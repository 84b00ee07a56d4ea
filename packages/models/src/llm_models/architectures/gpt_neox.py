"""Owns the spec of GPT-NeoX (Pythia): branches side by side with a norm each, rope over part of a head."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm, renamed
from llm_models.blocks.layer import Branch, Layer, Normed, pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import Names, groups
from llm_models.spec import DecoderSpec


@architecture("GPTNeoXForCausalLM")
def gpt_neox(config: Mapping[str, Any]) -> DecoderSpec:
    """GPT-NeoX, Pythia, Dolly."""
    config = renamed(config, {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"})
    reader, norm = ConfigReader(config), layer_norm(config)
    bias = reader.boolean("attention_bias", True)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, partial=0.25)
    mlp = MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("hidden_act", "gelu"),
        gated=False,
        bias=True,
    )
    layer = pre_norm(mixer, mlp, norm)
    if reader.boolean("use_parallel_residual", True):
        layer = Layer((Branch(blocks=(Normed(block=mixer, norm=norm), Normed(block=mlp, norm=norm))),))
    names = Names(
        top={
            "gpt_neox.embed_in": "embedding",
            "gpt_neox.final_layer_norm": "final_norm",
            "embed_out": "head",
            "lm_head": "head",
        },
        layer="gpt_neox.layers.{i}",
        inside={
            "input_layernorm": "attention.norm",
            "attention.query_key_value": groups(
                mixer.num_heads, "attention.query", "attention.key", "attention.value"
            ),
            "attention.dense": "attention.output",
            "post_attention_layernorm": "mlp.norm",
            "mlp.dense_h_to_4h": "mlp.up",
            "mlp.dense_4h_to_h": "mlp.down",
        },
        optional_prefix="gpt_neox.",
        harmless=(r"(.*\.)?attention\.(masked_)?bias", r"(.*\.)?rotary_emb\.inv_freq"),
    )
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=names)
