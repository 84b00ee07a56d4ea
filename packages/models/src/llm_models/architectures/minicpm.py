"""Owns the spec of MiniCPM 1 and 2 (dense); knows nothing about weights or the runtime."""

import math
from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.layer import Branch, Layer
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec, Embedding, Head


@architecture("MiniCPMForCausalLM")
def minicpm(config: Mapping[str, Any]) -> DecoderSpec:
    """MiniCPM 1, 2 and 4 (dense attention): Llama with factors on embeddings, branches and logits."""
    reader, norm = ConfigReader(config), rms_norm(config)
    reader.refuse("num_experts", "mixtures of experts are not supported")
    reader.refuse("sparse_config", "sparse attention is not supported")
    layers = reader.positive_int("num_hidden_layers")
    width = reader.positive_int("hidden_size")
    scale = reader.positive_float("scale_depth", 1.0) / math.sqrt(layers)
    bias = reader.boolean("attention_bias", False)
    blocks = (attention(config, qkv_bias=bias, output_bias=bias), gated_mlp(config))
    layer = Layer(tuple(Branch(blocks=(block,), pre=norm, scale=scale) for block in blocks))
    return decoder(
        config,
        [layer] * layers,
        final_norm=norm,
        embedding=Embedding(
            vocab_size=reader.positive_int("vocab_size"), scale=reader.positive_float("scale_emb", 1.0)
        ),
        head=Head(tied=True, scale=reader.positive_int("dim_model_base", 1) / width),
        tied=True,
    )
