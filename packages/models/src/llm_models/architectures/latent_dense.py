"""Owns the specs of dense decoders with latent attention: MiniCPM 3 and Youtu."""

import math
from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, gated_mlp, rms_norm
from llm_models.architectures.deepseek import LATENT_NAMES, latent_attention
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import Branch, Layer, pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Embedding, Head

_NAMES = LLAMA_NAMES.but(LATENT_NAMES, without=("self_attn.k_proj", "self_attn.v_proj"))


@architecture("YoutuForCausalLM")
def youtu(config: Mapping[str, Any]) -> DecoderSpec:
    """Youtu-LLM."""
    reader, norm = ConfigReader(config), rms_norm(config)
    mixer = latent_attention(config, interleaved=reader.boolean("rope_interleave", True))
    layers = [pre_norm(mixer, gated_mlp(config), norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES, tied=True)


@architecture("MiniCPM3ForCausalLM")
def minicpm3(config: Mapping[str, Any]) -> DecoderSpec:
    """MiniCPM 3: factors on embeddings, branches and logits."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    width, count = reader.positive_int("hidden_size"), reader.positive_int("num_hidden_layers")
    heads = reader.positive_int("num_attention_heads")
    config = with_defaults(
        config, kv_lora_rank=256, q_lora_rank=768, qk_nope_head_dim=64, qk_rope_head_dim=32
    )
    if config.get("v_head_dim") is None:
        config["v_head_dim"] = width // heads
    # A field that is there and null stands for no scaling.
    depth = math.sqrt(count) if _is_null(config, "scale_depth") else reader.positive_float("scale_depth", 1.4)
    base = width if _is_null(config, "dim_model_base") else reader.positive_int("dim_model_base", 256)
    blocks = (
        latent_attention(config, interleaved=False),
        gated_mlp(config, bias=reader.boolean("mlp_bias", False)),
    )
    scale = depth / math.sqrt(count)
    layer = Layer(tuple(Branch(blocks=(block,), pre=norm, scale=scale) for block in blocks))
    embedding = Embedding(
        vocab_size=reader.positive_int("vocab_size"), scale=reader.positive_float("scale_emb", 12.0)
    )
    return decoder(
        config,
        [layer] * count,
        final_norm=norm,
        names=_NAMES,
        embedding=embedding,
        head=Head(tied=True, scale=base / width),
        tied=True,
    )


def _is_null(config: Mapping[str, Any], field: str) -> bool:
    return field in config and config[field] is None
