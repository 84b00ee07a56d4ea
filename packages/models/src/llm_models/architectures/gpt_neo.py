"""Owns the spec of GPT-Neo: learned positions, unscaled scores, windows in every other layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, head_size_of, layer_norm, renamed
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import Names
from llm_models.spec import DecoderSpec, Embedding, LearnedPositions

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
        "attn.attention.q_proj": "attention.query",
        "attn.attention.k_proj": "attention.key",
        "attn.attention.v_proj": "attention.value",
        "attn.attention.out_proj": "attention.output",
        "ln_2": "mlp.norm",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    optional_prefix="transformer.",
    harmless=(r"(transformer\.)?h\.\d+\.attn\.attention\.(masked_)?bias",),
)


def _kinds(reader: ConfigReader) -> list[str]:
    """`global` or `local` for every layer."""
    layers = reader.positive_int("num_hidden_layers")
    if not reader.has("attention_types"):
        return [("global", "local")[index % 2] for index in range(layers)]
    kinds = [kind for pattern, count in reader.sequence("attention_types") for kind in pattern * count]
    if len(kinds) != layers:
        raise ConfigError("attention_types", f"names {len(kinds)} layers, not {layers}")
    for kind in kinds:
        if kind not in ("global", "local"):
            raise UnsupportedConfig("attention_types", f"{kind!r} is neither global nor local")
    return kinds


@architecture("GPTNeoForCausalLM")
def gpt_neo(config: Mapping[str, Any]) -> DecoderSpec:
    """GPT-Neo."""
    config = renamed(config, {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"})
    reader, norm, size = ConfigReader(config), layer_norm(config, "layer_norm_epsilon"), head_size_of(config)
    heads, width = reader.positive_int("num_attention_heads"), reader.positive_int("hidden_size")
    mixer = Attention(num_heads=heads, num_kv_heads=heads, head_size=size, scale=1.0, output_bias=True)
    mlp = MLP(
        intermediate_size=reader.positive_int("intermediate_size", 4 * width),
        activation=reader.activation("activation_function", "gelu_new"),
        gated=False,
        bias=True,
    )
    window = reader.positive_int("window_size", 256)
    layers = [
        pre_norm(replace(mixer, sliding_window=window if kind == "local" else None), mlp, norm)
        for kind in _kinds(reader)
    ]
    positions = LearnedPositions(count=reader.positive_int("max_position_embeddings"))
    embedding = Embedding(vocab_size=reader.positive_int("vocab_size"), positions=positions)
    return decoder(config, layers, final_norm=norm, names=_NAMES, embedding=embedding, tied=True)
