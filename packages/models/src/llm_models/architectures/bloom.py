"""Owns the spec of BLOOM: ALiBi, and a norm of the embeddings."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import alibi_slopes, decoder, head_size_of, layer_norm, renamed
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import Names, groups
from llm_models.spec import DecoderSpec, Embedding

# ALiBi has no end; BLOOM was trained on this many tokens.
_MAX_POSITIONS = 2048


@architecture("BloomForCausalLM")
def bloom(config: Mapping[str, Any]) -> DecoderSpec:
    """BLOOM and BLOOMZ."""
    fields = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "hidden_size": "n_embed"}
    config = renamed(config, fields)
    reader, norm, size = ConfigReader(config), layer_norm(config, "layer_norm_epsilon"), head_size_of(config)
    heads = reader.positive_int("num_attention_heads")
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        scale=size**-0.5,
        alibi_slopes=alibi_slopes(heads),
        qkv_bias=True,
        output_bias=True,
    )
    mlp = MLP(
        intermediate_size=4 * reader.positive_int("hidden_size"),
        activation="gelu_tanh",
        gated=False,
        bias=True,
    )
    from_norm = reader.boolean("apply_residual_connection_post_layernorm", False)
    layer = Layer(
        tuple(Branch(blocks=(block,), pre=norm, residual_from_norm=from_norm) for block in (mixer, mlp))
    )
    names = Names(
        top={
            "transformer.word_embeddings": "embedding",
            "transformer.word_embeddings_layernorm": "embedding_norm",
            "transformer.ln_f": "final_norm",
            "lm_head": "head",
        },
        layer="transformer.h.{i}",
        inside={
            "input_layernorm": "attention.norm",
            "self_attention.query_key_value": groups(
                heads, "attention.query", "attention.key", "attention.value"
            ),
            "self_attention.dense": "attention.output",
            "post_attention_layernorm": "mlp.norm",
            "mlp.dense_h_to_4h": "mlp.up",
            "mlp.dense_4h_to_h": "mlp.down",
        },
        optional_prefix="transformer.",
    )
    return decoder(
        config,
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=names,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), norm=norm),
        tied=True,
        max_positions=reader.positive_int("seq_length", _MAX_POSITIONS),
    )
