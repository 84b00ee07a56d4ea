"""Owns the specs of Qwen's mixtures of experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, renamed, rms_norm
from llm_models.architectures.qwen2 import layer_windows
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_EXPERT_NAMES = {
    "mlp.gate": "mlp.router",
    "mlp.experts.{e}.gate_proj": "mlp.experts.{e}.gate",
    "mlp.experts.{e}.up_proj": "mlp.experts.{e}.up",
    "mlp.experts.{e}.down_proj": "mlp.experts.{e}.down",
}


@architecture("Qwen3MoeForCausalLM")
def qwen3_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3 with a mixture of experts in most layers."""
    config = renamed(config, {"num_experts": "num_local_experts"})
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    dense = gated_mlp(config)
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 128),
        expert_size=reader.positive_int("moe_intermediate_size", 768),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 8),
            renormalize=reader.boolean("norm_topk_prob", False),
        ),
    )
    is_dense = set(reader.sequence("mlp_only_layers") if reader.has("mlp_only_layers") else ())
    every = reader.positive_int("decoder_sparse_step", 1)
    layers = []
    for index, window in enumerate(layer_windows(config)):
        mixer = attention(
            config,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm(norm=norm),
            sliding_window=window,
        )
        dense_here = index in is_dense or (index + 1) % every
        layers.append(pre_norm(mixer, dense if dense_here else moe, norm))
    return decoder(config, layers, final_norm=norm, names=LLAMA_NAMES.but(_EXPERT_NAMES))
