"""Owns the specs of models that are a Llama by another name; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.architectures.llama import llama
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec


@architecture("AquilaForCausalLM", "AquilaModel", "XverseForCausalLM", "LLaMAForCausalLM")
def relatives(config: Mapping[str, Any]) -> DecoderSpec:
    """Aquila, XVERSE, and Llama as its first conversions called it."""
    return llama(config)


@architecture("IQuestCoderForCausalLM")
def iquestcoder(config: Mapping[str, Any]) -> DecoderSpec:
    """IQuest-Coder: Llama with heads of their own size."""
    reader = ConfigReader(config)
    reader.refuse("clip_qkv", "no released checkpoint has it")
    reader.refuse("use_sliding_window", "no released checkpoint has it")
    return llama(with_defaults(config, head_dim=128))


@architecture("Emu3ForCausalLM")
def emu3(config: Mapping[str, Any]) -> DecoderSpec:
    """The text model of Emu 3."""
    return llama({**with_defaults(config, rope_theta=1000000.0, rms_norm_eps=1e-5), "mlp_bias": False})


@architecture("OrionForCausalLM")
def orion(config: Mapping[str, Any]) -> DecoderSpec:
    """Orion 14B: Llama with layer norms."""
    reader, norm = ConfigReader(config), layer_norm(config, "rms_norm_eps")
    bias = reader.boolean("attention_bias", False)
    layer = pre_norm(attention(config, qkv_bias=bias, output_bias=bias), gated_mlp(config), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm)
