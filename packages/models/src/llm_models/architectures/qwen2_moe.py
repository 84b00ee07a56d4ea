"""Owns the spec of Qwen2-MoE; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, renamed, rms_norm
from llm_models.architectures.layouts import FULL, SLIDING
from llm_models.architectures.mixtures import choose, expert_names
from llm_models.architectures.qwen2 import layer_windows
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {**expert_names(shared="shared_expert"), "mlp.shared_expert_gate": "mlp.shared_gate"}
)


@architecture("Qwen2MoeForCausalLM")
def qwen2_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen1.5-MoE and Qwen2-MoE: experts beside a gated shared one."""
    config = renamed(config, {"num_experts": "num_local_experts"})
    reader, norm = ConfigReader(config), rms_norm(config)
    shared = gated_mlp(config, field="shared_expert_intermediate_size")
    moe = MoE(
        num_experts=reader.positive_int("num_experts", 60),
        expert_size=reader.positive_int("moe_intermediate_size", 1408),
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 4),
            renormalize=reader.boolean("norm_topk_prob", False),
        ),
        shared=replace(shared, name="shared"),
        shared_gate=True,
    )
    only = set(reader.sequence("mlp_only_layers") if reader.has("mlp_only_layers") else ())
    every = reader.positive_int("decoder_sparse_step", 1)
    bias = reader.boolean("qkv_bias", True)
    windows = _windows(config)
    blocks = choose(
        config, moe, (index not in only and not (index + 1) % every for index in range(len(windows)))
    )
    layers = [
        pre_norm(attention(config, qkv_bias=bias, sliding_window=window), block, norm)
        for window, block in zip(windows, blocks, strict=True)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _windows(config: Mapping[str, Any]) -> list[int | None]:
    """Unlike in Qwen2, every other of the first `max_window_layers` layers slides."""
    reader = ConfigReader(config)
    if reader.has("layer_types") or not reader.boolean("use_sliding_window", False):
        return layer_windows(config)
    last = reader.whole_number("max_window_layers", 28)
    kinds = [
        SLIDING if layer % 2 == 0 and layer < last else FULL
        for layer in range(reader.positive_int("num_hidden_layers"))
    ]
    return layer_windows({**config, "layer_types": kinds})
