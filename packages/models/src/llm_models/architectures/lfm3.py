"""Owns the spec of LFM3: short convolutions, and gated attention with and without a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.hybrid_parts import FULL, hybrid_kinds
from llm_models.architectures.layouts import SLIDING, with_defaults
from llm_models.architectures.lfm2 import NAMES
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.short_conv import ShortConv
from llm_models.config import ConfigReader
from llm_models.spec import DecoderSpec

_NAMES = NAMES.but(
    {
        "post_operator_norm": "mixer.post_norm",
        "post_ffn_norm": "mlp.post_norm",
        "self_attn.gate_proj": "attention.gate",
    }
)
_CONV = "conv"
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}


@architecture("Lfm3ForCausalLM")
def lfm3(config: Mapping[str, Any]) -> DecoderSpec:
    """LFM3."""
    config = with_defaults(config, num_key_value_heads=4, head_dim=128, sliding_window=256)
    config = config if config.get("rope_parameters") else {**config, "rope_parameters": _ROPES}
    reader, norm = ConfigReader(config), rms_norm(config, "norm_eps", default=1e-5)
    post = norm if reader.boolean("use_sandwich_norm", True) else None
    mlp = MLP(intermediate_size=reader.positive_int("intermediate_size", 7680))
    default = [_kind(index) for index in range(reader.positive_int("num_hidden_layers"))]
    kinds = hybrid_kinds(config, default, (FULL, SLIDING, _CONV))
    mixers: dict[str, BlockSpec] = {kind: _attention(config, kind) for kind in {*kinds} - {_CONV}}
    mixers[_CONV] = ShortConv(
        inner_size=reader.positive_int("hidden_size"),
        conv_width=reader.positive_int("conv_L_cache", 7),
        bias=reader.boolean("conv_bias", False),
    )
    layers = [
        Layer(
            (
                Branch(blocks=(mixers[kind],), pre=norm, post=post, name="mixer"),
                Branch(blocks=(mlp,), pre=norm, post=post),
            )
        )
        for kind in kinds
    ]
    return decoder(config, layers, final_norm=norm, names=_NAMES, tied=True)


def _kind(layer: int) -> str:
    if layer % 4 == 2:
        return FULL
    return SLIDING if layer and layer % 4 == 0 else _CONV


def _attention(config: Mapping[str, Any], kind: str) -> Attention:
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, layer_type=kind)
    return replace(
        mixer,
        qk_norm=QKNorm(norm=rms_norm(config, "norm_eps", default=1e-5)),
        gate="head" if reader.boolean("use_attention_gate", True) else None,
        sliding_window=reader.positive_int("sliding_window") if kind == SLIDING else None,
    )
