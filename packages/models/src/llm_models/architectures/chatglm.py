"""Owns the spec of ChatGLM 2 to 4 as their authors publish it; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names, rows
from llm_models.spec import DecoderSpec, Embedding

_NAMES = Names(
    top={
        "transformer.embedding.word_embeddings": "embedding",
        "transformer.encoder.final_layernorm": "final_norm",
        "transformer.output_layer": "head",
    },
    layer="transformer.encoder.layers.{i}",
    inside={
        "input_layernorm": "attention.norm",
        "self_attention.query_key_value": rows("attention.query", "attention.key", "attention.value"),
        "self_attention.dense": "attention.output",
        "post_attention_layernorm": "mlp.norm",
        "mlp.dense_h_to_4h": rows("mlp.gate", "mlp.up"),
        "mlp.dense_4h_to_h": "mlp.down",
    },
    harmless=(r"transformer\.rotary_pos_emb\.inv_freq",),
)


@architecture("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(config: Mapping[str, Any]) -> DecoderSpec:
    """ChatGLM 2 and 3 and the first GLM-4: GLM under other names."""
    reader = ConfigReader(config)
    reader.refuse("position_encoding_2d", "the first ChatGLM is not supported")
    reader.refuse("vision_config", "pictures are not supported")
    reader.refuse("apply_residual_connection_post_layernorm", "the residual is the stream itself")
    for field in ("rmsnorm", "original_rope", "post_layer_norm"):
        if not reader.boolean(field, True):
            raise UnsupportedConfig(field, "false is not supported")
    heads = reader.positive_int("num_attention_heads")
    has_groups = reader.boolean("multi_query_attention", False)
    kv_heads = reader.positive_int("multi_query_group_num", 1) if has_groups else heads
    spelled = {
        "num_hidden_layers": reader.positive_int("num_layers"),
        "num_key_value_heads": kv_heads,
        "head_dim": reader.positive_int("kv_channels", 128),
        "max_position_embeddings": reader.positive_int("seq_length"),
        "rope_theta": 10000.0 * reader.positive_float("rope_ratio", 1.0),
    }
    spelled_config = {"tie_word_embeddings": False, **config, **spelled}
    bias = reader.boolean("add_bias_linear", False)
    qkv_bias = bias or reader.boolean("add_qkv_bias", False)
    norm = rms_norm(config, "layernorm_epsilon", default=1e-5)
    mixer = attention(spelled_config, qkv_bias=qkv_bias, output_bias=bias, partial=0.5, interleaved=True)
    mlp = MLP(intermediate_size=reader.positive_int("ffn_hidden_size"), bias=bias)
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_layers")
    embedding = Embedding(vocab_size=reader.positive_int("padded_vocab_size"))
    return decoder(spelled_config, layers, final_norm=norm, names=_NAMES, embedding=embedding)
