"""Owns the spec of StableLM; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_norm
from llm_models.architectures.layouts import parallel
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec

_NAMES = LLAMA_NAMES.but(
    {
        "self_attn.q_layernorm.norms.{e}": "attention.query_norm.{e}",
        "self_attn.k_layernorm.norms.{e}": "attention.key_norm.{e}",
    }
)


# The second is the first release's.
@architecture("StableLmForCausalLM", "StableLMEpochForCausalLM")
def stablelm(config: Mapping[str, Any]) -> DecoderSpec:
    """StableLM 2 and 3B: layer norms, a quarter of each head turns; the 12B has parallel blocks."""
    config = _with_first_release_spelling(config)
    reader, norm = ConfigReader(config), layer_norm(config)
    qk_norm = None
    if reader.boolean("qk_layernorm", False):
        qk_norm = QKNorm(norm=replace(norm, bias=False), over="each_head", is_separate=True)
    bias = reader.boolean("use_qkv_bias", False)
    mixer = attention(config, qkv_bias=bias, qk_norm=qk_norm, partial=0.25)
    layout = parallel if reader.boolean("use_parallel_residual", False) else pre_norm
    layers = [layout(mixer, gated_mlp(config), norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _with_first_release_spelling(config: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {"partial_rotary_factor": "rope_pct", "layer_norm_eps": "norm_eps"}
    return {**{new: config[old] for new, old in spelled.items() if old in config}, **config}
