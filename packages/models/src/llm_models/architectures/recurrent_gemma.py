"""Owns the spec of RecurrentGemma: Griffin's recurrent mixers, and attention with a window in some layers."""

from collections.abc import Mapping
from typing import Any

import torch

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.attention import Attention
from llm_models.blocks.griffin import Griffin
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import Names
from llm_models.spec import DecoderSpec, Embedding, Head

_NAMES = Names(
    top={"model.embed_tokens": "embedding", "model.final_norm": "final_norm", "lm_head": "head"},
    layer="model.layers.{i}",
    inside={
        "temporal_pre_norm": "mixer.norm",
        "temporal_block.q_proj": "attention.query",
        "temporal_block.k_proj": "attention.key",
        "temporal_block.v_proj": "attention.value",
        "temporal_block.o_proj": "attention.output",
        "temporal_block.linear_x": "griffin.x",
        "temporal_block.linear_y": "griffin.gate",
        "temporal_block.linear_out": "griffin.output",
        "temporal_block.conv_1d": "griffin.conv",
        "temporal_block.rg_lru.recurrent_param": "griffin.decay",
        "temporal_block.rg_lru.input_gate_weight": "griffin.input_gate.weight",
        "temporal_block.rg_lru.input_gate_bias": "griffin.input_gate.bias",
        "temporal_block.rg_lru.recurrent_gate_weight": "griffin.recurrent_gate.weight",
        "temporal_block.rg_lru.recurrent_gate_bias": "griffin.recurrent_gate.bias",
        "channel_pre_norm": "mlp.norm",
        "mlp_block.gate_proj": "mlp.gate",
        "mlp_block.up_proj": "mlp.up",
        "mlp_block.down_proj": "mlp.down",
    },
    optional_prefix="model.",
)
# The table of rotations needs an end, though the model has none.
_MAX_POSITIONS = 1 << 17


@architecture("RecurrentGemmaForCausalLM")
def recurrent_gemma(config: Mapping[str, Any]) -> DecoderSpec:
    """RecurrentGemma (Griffin)."""
    config = renamed(config, {"hidden_act": "hidden_activation"})
    config = with_defaults(config, hidden_act="gelu_pytorch_tanh", max_position_embeddings=_MAX_POSITIONS)
    reader, norm = ConfigReader(config), rms_norm(config, plus_one=True)
    size = reader.positive_int("intermediate_size")
    if size % 2:
        raise ConfigError("intermediate_size", f"{size} is odd, though it counts gate and up together")
    mlp = MLP(intermediate_size=size // 2, activation=reader.activation(), bias=True)
    mixers: dict[str, BlockSpec] = {"attention": _attention(config), "recurrent": _griffin(reader)}
    layers = [
        Layer((Branch(blocks=(mixers[kind],), pre=norm, name="mixer"), Branch(blocks=(mlp,), pre=norm)))
        for kind in _kinds(reader)
    ]
    # The reference rounds the factor to bfloat16 whatever the model's number format.
    scale = _rounded(reader.positive_int("hidden_size") ** 0.5)
    cap = reader.positive_float("logits_soft_cap", 30.0)
    return decoder(
        config,
        layers,
        final_norm=norm,
        names=_NAMES,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), scale=scale),
        head=Head(tied=True, soft_cap=cap),
        tied=True,
    )


def _rounded(value: float) -> float:
    return torch.tensor(value, dtype=torch.bfloat16).item()


def _kinds(reader: ConfigReader) -> list[str]:
    """`block_types` over and over; at times it is written as `_block_types`."""
    pattern = ["recurrent", "recurrent", "attention"]
    for field in ("block_types", "_block_types"):
        if reader.has(field):
            pattern = reader.sequence(field)
            break
    unknown = set(pattern) - {"recurrent", "attention"}
    if unknown or not pattern:
        raise UnsupportedConfig("block_types", f"{pattern!r} must hold recurrent and attention")
    return [pattern[i % len(pattern)] for i in range(reader.positive_int("num_hidden_layers"))]


def _attention(config: Mapping[str, Any]) -> Attention:
    reader = ConfigReader(config)
    return attention(
        config,
        qkv_bias=reader.boolean("attention_bias", False),
        output_bias=True,
        partial=0.5,
        sliding_window=reader.positive_int("attention_window_size", 2048),
    )


def _griffin(reader: ConfigReader) -> Griffin:
    return Griffin(
        inner_size=reader.positive_int("lru_width", reader.positive_int("hidden_size")),
        num_heads=reader.positive_int("num_attention_heads"),
        conv_width=reader.positive_int("conv1d_width", 4),
        activation=reader.activation(),
    )
