"""Owns the specs of InternLM 1 to 3; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import ROTARY_BUFFERS, Names, groups
from llm_models.spec import DecoderSpec


@architecture("InternLMForCausalLM")
def internlm(config: Mapping[str, Any]) -> DecoderSpec:
    """InternLM 1: Llama with biases around attention."""
    reader = ConfigReader(config)
    rotary = reader.section("rotary")
    theta = 10000.0 if rotary is None else rotary.positive_float("base", 10000.0)
    bias = reader.boolean("bias", True)
    return _internlm(with_defaults(config, rope_theta=theta), qkv_bias=bias, output_bias=bias)


@architecture("InternLM2ForCausalLM")
def internlm2(config: Mapping[str, Any]) -> DecoderSpec:
    """InternLM 2 and 2.5: a Llama whose query, key and value lie together by KV head."""
    reader = ConfigReader(config)
    bias = reader.boolean("bias", True)
    kv_heads = reader.positive_int("num_key_value_heads", reader.positive_int("num_attention_heads"))
    spec = _internlm(config, qkv_bias=bias, output_bias=bias)
    return replace(spec, names=_internlm2_names(kv_heads))


@architecture("InternLM3ForCausalLM")
def internlm3(config: Mapping[str, Any]) -> DecoderSpec:
    """InternLM 3: Llama with heads of their own size."""
    reader = ConfigReader(config)
    bias, qkv_bias = reader.boolean("bias", False), reader.boolean("qkv_bias", False)
    return _internlm(config, qkv_bias=qkv_bias, output_bias=bias, mlp_bias=bias)


def _internlm(
    config: Mapping[str, Any], *, qkv_bias: bool, output_bias: bool, mlp_bias: bool = False
) -> DecoderSpec:
    norm = rms_norm(config)
    mixer = attention(config, qkv_bias=qkv_bias, output_bias=output_bias)
    layer = pre_norm(mixer, gated_mlp(config, bias=mlp_bias), norm)
    return decoder(config, [layer] * ConfigReader(config).positive_int("num_hidden_layers"), final_norm=norm)


def _internlm2_names(kv_heads: int) -> Names:
    return Names(
        top={"model.tok_embeddings": "embedding", "model.norm": "final_norm", "output": "head"},
        layer="model.layers.{i}",
        inside={
            "attention_norm": "attention.norm",
            "attention.wqkv": groups(kv_heads, "attention.query", "attention.key", "attention.value"),
            "attention.wo": "attention.output",
            "ffn_norm": "mlp.norm",
            "feed_forward.w1": "mlp.gate",
            "feed_forward.w3": "mlp.up",
            "feed_forward.w2": "mlp.down",
        },
        optional_prefix="model.",
        harmless=ROTARY_BUFFERS,
    )
