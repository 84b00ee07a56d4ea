"""Owns the spec of Phi-3 and Phi-4; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, rows
from llm_models.spec import DecoderSpec

FUSED_GATE_UP = {"mlp.gate_up_proj": rows("mlp.gate", "mlp.up")}
_NAMES = LLAMA_NAMES.but(
    {
        "self_attn.qkv_proj": rows("attention.query", "attention.key", "attention.value"),
        **FUSED_GATE_UP,
    }
)


@architecture("Phi3ForCausalLM")
def phi3(config: Mapping[str, Any]) -> DecoderSpec:
    """Phi-3 and Phi-4: Llama with fused projections, at times a window over all layers and LongRoPE."""
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    layer = pre_norm(attention(_with_longrope(config), sliding_window=window), gated_mlp(config), norm)
    return decoder(config, [layer] * reader.positive_int("num_hidden_layers"), final_norm=norm, names=_NAMES)


def _with_longrope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the first release's name `yarn` of LongRoPE corrected."""
    for field in ("rope_parameters", "rope_scaling"):
        section = config.get(field)
        if isinstance(section, Mapping) and "short_factor" in section:
            return {**config, field: {**section, "rope_type": "longrope"}}
    return config
