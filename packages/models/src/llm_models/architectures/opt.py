"""Owns the spec of OPT: learned positions, ReLU, norms before the blocks or after the sums."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, head_size_of
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import Branch, Layer, pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import Names
from llm_models.spec import DecoderSpec, Embedding, Head, LearnedPositions

_NAMES = Names(
    top={
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.embed_positions": "positions",
        "model.decoder.project_in": "embedding_projection",
        "model.decoder.project_out": "head_projection",
        "model.decoder.final_layer_norm": "final_norm",
        "lm_head": "head",
    },
    layer="model.decoder.layers.{i}",
    inside={
        "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key",
        "self_attn.v_proj": "attention.value",
        "self_attn.out_proj": "attention.output",
        "fc1": "mlp.up",
        "fc2": "mlp.down",
    },
    optional_prefix="model.",
)
# The table starts with two rows that no position uses.
_FIRST_POSITION = 2


@architecture("OPTForCausalLM")
def opt(config: Mapping[str, Any]) -> DecoderSpec:
    """OPT; the 350M model has its norms after the sums and a narrower embedding."""
    reader = ConfigReader(config)
    width, heads = reader.positive_int("hidden_size"), reader.positive_int("num_attention_heads")
    bias, size = reader.boolean("enable_bias", True), head_size_of(config)
    affine = reader.boolean("layer_norm_elementwise_affine", True)
    norm = Norm(eps=1e-5, kind="layer", weight=affine, bias=affine)
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        scale=size**-0.5,
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = MLP(
        intermediate_size=reader.positive_int("ffn_dim"),
        activation=reader.activation("activation_function", "relu"),
        gated=False,
        bias=bias,
    )
    before = reader.boolean("do_layer_norm_before", True)
    leaf = "norm" if before else "after_norm"
    layer = pre_norm(mixer, mlp, norm)
    if not before:
        layer = Layer((Branch(blocks=(mixer,), after=norm), Branch(blocks=(mlp,), after=norm)))
    has_final = before and not reader.boolean("_remove_final_layer_norm", False)
    positions = reader.positive_int("max_position_embeddings")
    narrow = reader.positive_int("word_embed_proj_dim", width)
    return decoder(
        config,
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm if has_final else None,
        names=_NAMES.but({"self_attn_layer_norm": f"attention.{leaf}", "final_layer_norm": f"mlp.{leaf}"}),
        embedding=Embedding(
            vocab_size=reader.positive_int("vocab_size"),
            size=narrow,
            positions=LearnedPositions(
                count=positions + _FIRST_POSITION, offset=_FIRST_POSITION, after_projection=True
            ),
        ),
        head=Head(tied=True, size=narrow),
        tied=True,
    )
