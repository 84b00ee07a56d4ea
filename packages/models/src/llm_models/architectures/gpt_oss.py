"""Owns the spec of gpt-oss; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed, rms_norm
from llm_models.architectures.layouts import attention_windows, with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, alternating, stacked
from llm_models.spec import DecoderSpec

_GATE, _UP, _DOWN = (f"mlp.experts.{{e}}.{side}" for side in ("gate", "up", "down"))
_NAMES = LLAMA_NAMES.but(
    {
        "self_attn.sinks": "attention.sinks",
        "mlp.router": "mlp.router",
        "mlp.experts.gate_up_proj": alternating(
            f"{_GATE}.weight", f"{_UP}.weight", stacked=True, transposed=True
        ),
        "mlp.experts.gate_up_proj_bias": alternating(f"{_GATE}.bias", f"{_UP}.bias", stacked=True),
        "mlp.experts.down_proj": stacked(f"{_DOWN}.weight", transposed=True),
        "mlp.experts.down_proj_bias": stacked(f"{_DOWN}.bias"),
    }
)
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@architecture("GptOssForCausalLM")
def gpt_oss(config: Mapping[str, Any]) -> DecoderSpec:
    """gpt-oss 20B and 120B: attention sinks, a window in every other layer, clamped gates."""
    config = with_defaults(renamed(config, {"num_local_experts": "num_experts"}), sliding_window=128)
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config["rope_scaling"] = _YARN
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    if reader.activation() != "silu":
        raise UnsupportedConfig("hidden_act", "gpt-oss has silu only")
    bias = reader.boolean("attention_bias", True)
    mixer = replace(
        attention(config, default_head_size=64, qkv_bias=bias, output_bias=bias, theta=150000.0), sinks=True
    )
    moe = MoE(
        num_experts=reader.positive_int("num_local_experts", 128),
        expert_size=reader.positive_int("intermediate_size"),
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 4), scoring="softmax_after", bias=True
        ),
        bias=True,
        limit=reader.positive_float("swiglu_limit", 7.0),
        alpha=reader.positive_float("swiglu_alpha", 1.702),
    )
    layers = [
        pre_norm(replace(mixer, sliding_window=window), moe, norm)
        for window in attention_windows(config, lambda layer: layer % 2 == 1)
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES)
