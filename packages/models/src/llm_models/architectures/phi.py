"""Owns the spec of Phi 1 and 2: attention and feed-forward side by side, rope over part of a head."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Head

_NAMES = LLAMA_NAMES.but(
    {
        "self_attn.dense": "attention.output",
        "self_attn.q_layernorm": "attention.query_norm",
        "self_attn.k_layernorm": "attention.key_norm",
        "mlp.fc1": "mlp.up",
        "mlp.fc2": "mlp.down",
    },
    top={"model.final_layernorm": "final_norm"},
)


@architecture("PhiForCausalLM")
def phi(config: Mapping[str, Any]) -> DecoderSpec:
    """Phi-1, Phi-1.5 and Phi-2."""
    reader, norm = ConfigReader(config), layer_norm(config)
    qk_norm = QKNorm(norm=norm) if reader.boolean("qk_layernorm", False) else None
    mixer = attention(config, qkv_bias=True, output_bias=True, qk_norm=qk_norm, partial=0.5)
    mlp = MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("hidden_act", "gelu_new"),
        gated=False,
        bias=True,
    )
    layer = Layer((Branch(blocks=(mixer, mlp), pre=norm),))
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES, head=Head(tied=False, bias=True))
