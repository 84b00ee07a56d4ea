"""Owns the specs of GPT-J and CodeGen: attention and feed-forward side by side, rope over neighbours."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, head_size_of, layer_norm, renamed
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import Names, groups
from llm_models.rope import Rope
from llm_models.spec import DecoderSpec, Head

_FIELDS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_NAMES = Names(
    top={"transformer.wte": "embedding", "transformer.ln_f": "final_norm", "lm_head": "head"},
    layer="transformer.h.{i}",
    inside={
        "ln_1": "attention.norm",
        "attn.q_proj": "attention.query",
        "attn.k_proj": "attention.key",
        "attn.v_proj": "attention.value",
        "attn.out_proj": "attention.output",
        "mlp.fc_in": "mlp.up",
        "mlp.fc_out": "mlp.down",
    },
    optional_prefix="transformer.",
    harmless=(r"(transformer\.)?h\.\d+\.attn\.(causal_mask|(masked_)?bias|embed_positions)",),
)
# CodeGen was trained on four chips, each with its own queries, values and keys in one matrix.
_CODEGEN_SHARES = 4


def _decoder(config: Mapping[str, Any], names: Names) -> DecoderSpec:
    config = renamed(config, _FIELDS)
    reader, norm, size = ConfigReader(config), layer_norm(config, "layer_norm_epsilon"), head_size_of(config)
    heads, width = reader.positive_int("num_attention_heads"), reader.positive_int("hidden_size")
    rope = Rope(
        rotary_size=reader.positive_int("rotary_dim", size),
        theta=10000.0,
        max_positions=reader.positive_int("max_position_embeddings"),
        interleaved=True,
    )
    mixer = Attention(num_heads=heads, num_kv_heads=heads, head_size=size, scale=size**-0.5, rope=rope)
    mlp = MLP(
        intermediate_size=reader.positive_int("n_inner", 4 * width),
        activation=reader.activation("activation_function", "gelu_new"),
        gated=False,
        bias=True,
    )
    layer = Layer((Branch(blocks=(mixer, mlp), pre=norm),))
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=names, head=Head(tied=False, bias=True))


@architecture("GPTJForCausalLM")
def gptj(config: Mapping[str, Any]) -> DecoderSpec:
    """GPT-J."""
    return _decoder(config, _NAMES)


@architecture("CodeGenForCausalLM")
def codegen(config: Mapping[str, Any]) -> DecoderSpec:
    """CodeGen: GPT-J with queries, values and keys in one matrix."""
    fused = groups(_CODEGEN_SHARES, "attention.query", "attention.value", "attention.key")
    return _decoder(config, _NAMES.but({"attn.qkv_proj": fused}))
