"""Owns the spec of Cohere's mixture of experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_norm, renamed, rms_norm
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, parallel, with_defaults
from llm_models.architectures.mixtures import expert_names, feed_forwards, shared_mlp
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Head

_NAMES = LLAMA_NAMES.but(expert_names(shared="shared_experts"), without=("post_attention_layernorm",))


@architecture("Cohere2MoeForCausalLM")
def cohere2_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """Command A with experts: both blocks side by side; layers without a window do without rope."""
    config = with_defaults(renamed(config, {"num_experts": "num_local_experts"}), sliding_window=4096)
    if config.get("layer_types") is None:
        config["layer_types"] = _layer_kinds(config)
    reader = ConfigReader(config)
    norm = rms_norm(config) if reader.has("rms_norm_eps") else layer_norm(config, bias=False)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, default_head_size=128, qkv_bias=bias, output_bias=bias, interleaved=True)
    dense_config = config
    if reader.has("prefix_dense_intermediate_size"):
        dense_config = {**config, "intermediate_size": config["prefix_dense_intermediate_size"]}
    blocks = feed_forwards(dense_config, _moe(config))
    turns_if_dense = reader.positive_int("prefix_dense_sliding_window_pattern", 1) == 1
    layers = []
    for window, block in zip(attention_windows(config, lambda _: True), blocks, strict=True):
        turns = window is not None or (turns_if_dense and isinstance(block, MLP))
        here = replace(mixer, sliding_window=window, rope=mixer.rope if turns else None)
        layers.append(parallel(here, block, norm))
    head = Head(tied=True, scale=reader.positive_float("logit_scale", 0.0625))
    return decoder(config, layers, final_norm=norm, names=_NAMES, head=head, tied=True)


def _moe(config: Mapping[str, Any]) -> MoE:
    reader = ConfigReader(config)
    scoring = reader.string("expert_selection_fn", "softmax")
    if scoring not in ("softmax", "sigmoid"):
        raise UnsupportedConfig("expert_selection_fn", f"{scoring!r} is neither softmax nor sigmoid")
    strategy = reader.string("shared_expert_combination_strategy", "average")
    if strategy not in ("average", "sum"):
        raise UnsupportedConfig(
            "shared_expert_combination_strategy", f"{strategy!r} is neither average nor sum"
        )
    size = reader.positive_int("intermediate_size")
    shared = shared_mlp(config, size * reader.whole_number("num_shared_experts", 0))
    scale = 0.5 if shared is not None and strategy == "average" else 1.0
    return MoE(
        num_experts=reader.positive_int("num_experts", 8),
        expert_size=size,
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 2),
            scoring="softmax_after" if scoring == "softmax" else "sigmoid_after",
            renormalize=scoring == "sigmoid" and reader.boolean("norm_topk_prob", True),
        ),
        shared=None if shared is None else replace(shared, scale=scale),
        scale=scale,
    )


def _layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """The dense layers at the start count by a period of their own."""
    reader = ConfigReader(config)
    first = reader.whole_number("first_k_dense_replace", 0)
    rest = reader.positive_int("num_hidden_layers") - first
    prefix_period = reader.positive_int("prefix_dense_sliding_window_pattern", 1)
    period = reader.positive_int("sliding_window_pattern", 4)
    places = [(index, prefix_period) for index in range(first)] + [(index, period) for index in range(rest)]
    return [SLIDING if (index + 1) % every else FULL for index, every in places]
