"""Owns the spec of the first Qwen; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError
from llm_models.names import Names, rows
from llm_models.spec import DecoderSpec

_NAMES = Names(
    top={"transformer.wte": "embedding", "transformer.ln_f": "final_norm", "lm_head": "head"},
    layer="transformer.h.{i}",
    inside={
        "ln_1": "attention.norm",
        "attn.c_attn": rows("attention.query", "attention.key", "attention.value"),
        "attn.c_proj": "attention.output",
        "ln_2": "mlp.norm",
        "mlp.w1": "mlp.up",
        "mlp.w2": "mlp.gate",
        "mlp.c_proj": "mlp.down",
    },
    optional_prefix="transformer.",
    harmless=(r"transformer\.rotary_emb\.inv_freq", r".*\.attn\.(rotary_emb\.inv_freq|bias|masked_bias)"),
)


@architecture("QWenLMHeadModel")
def qwen(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen 1: Llama with biases on query, key and value.

    Beyond the length it was trained for, some configs ask for a rope and a scale that change with the length
    of the text (`use_dynamic_ntk`, `use_logn_attn`). Keys in the cache cannot follow: texts end there.
    """
    reader = ConfigReader(config)
    length = reader.positive_int("max_position_embeddings", reader.positive_int("seq_length", 8192))
    if reader.boolean("use_dynamic_ntk", False) or reader.boolean("use_logn_attn", False):
        length = min(length, reader.positive_int("seq_length", length))
    spelled = {
        "head_dim": reader.positive_int("kv_channels", 128),
        "rope_theta": reader.positive_float("rotary_emb_base", 10000.0),
        "partial_rotary_factor": reader.positive_float("rotary_pct", 1.0),
        "max_position_embeddings": length,
        "num_key_value_heads": None,
    }
    has_bias = not reader.boolean("no_bias", True)
    width = reader.positive_int("intermediate_size")
    if width % 2:
        raise ConfigError("intermediate_size", f"{width} counts gate and up together, so it must be even")
    norm = rms_norm(config, "layer_norm_epsilon")
    mixer = attention({**config, **spelled}, qkv_bias=True, output_bias=has_bias)
    mlp = MLP(intermediate_size=width // 2, bias=has_bias)
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES, max_positions=length)
