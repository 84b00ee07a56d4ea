"""Owns the specs of Qwen3-Next and Qwen3.5: delta-rule layers between gated attention layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, layer_kinds, renamed, rms_norm
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.delta_rule import DeltaRule
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES, Names, groups, rows, stacked
from llm_models.spec import DecoderSpec

_QKV = ("delta.query", "delta.key", "delta.value")
_CONV = ("delta.conv_query", "delta.conv_key", "delta.conv_value")
# Layers that predict further tokens at once, and the vision half of multimodal checkpoints.
_HARMLESS = (r"mtp\..*", r"(model\.)?visual\..*")


def _names(heads: int, linear: Mapping[str, Any]) -> Names:
    return LLAMA_NAMES.but(
        {
            "input_layernorm": "mixer.norm",
            "self_attn.q_proj": groups(heads, "attention.query", "attention.gate"),
            "linear_attn.conv1d": rows(*_CONV),
            "linear_attn.dt_bias": "delta.step_bias",
            "linear_attn.A_log": "delta.A_log",
            "linear_attn.norm": "delta.norm",
            "linear_attn.out_proj": "delta.output",
            "mlp.gate": "mlp.router",
            "mlp.experts.{e}.gate_proj": "mlp.experts.{e}.gate",
            "mlp.experts.{e}.up_proj": "mlp.experts.{e}.up",
            "mlp.experts.{e}.down_proj": "mlp.experts.{e}.down",
            "mlp.shared_expert.gate_proj": "mlp.shared.gate",
            "mlp.shared_expert.up_proj": "mlp.shared.up",
            "mlp.shared_expert.down_proj": "mlp.shared.down",
            "mlp.shared_expert_gate": "mlp.shared_gate",
            **linear,
        },
        harmless=_HARMLESS,
    )


def _mixers(config: Mapping[str, Any]) -> tuple[Attention, DeltaRule]:
    reader, norm = ConfigReader(config), rms_norm(config, plus_one=True)
    bias = reader.boolean("attention_bias", False)
    full = attention(
        config,
        default_head_size=256,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNorm(norm=norm),
        partial=0.25,
    )
    delta = DeltaRule(
        num_key_heads=reader.positive_int("linear_num_key_heads", 16),
        num_value_heads=reader.positive_int("linear_num_value_heads", 32),
        key_size=reader.positive_int("linear_key_head_dim", 128),
        value_size=reader.positive_int("linear_value_head_dim", 128),
        conv_width=reader.positive_int("linear_conv_kernel_dim", 4),
        norm=rms_norm(config),
    )
    return replace(full, gate="element"), delta


def _moe(config: Mapping[str, Any], *, renormalize: bool) -> MoE:
    reader = ConfigReader(renamed(config, {"num_experts": "num_local_experts"}))
    shared = gated_mlp(config, field="shared_expert_intermediate_size")
    return MoE(
        num_experts=reader.positive_int("num_experts"),
        expert_size=reader.positive_int("moe_intermediate_size"),
        activation=reader.activation(),
        router=Router(top_k=reader.positive_int("num_experts_per_tok"), renormalize=renormalize),
        shared=replace(shared, name="shared"),
        shared_gate=True,
    )


def _decoder(config: Mapping[str, Any], feed_forwards: list[BlockSpec], names: Names) -> DecoderSpec:
    norm = rms_norm(config, plus_one=True)
    full, delta = _mixers(config)
    every = ConfigReader(config).positive_int("full_attention_interval", 4)
    kinds = layer_kinds(config) or [
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(len(feed_forwards))
    ]
    layers = []
    for kind, feed_forward in zip(kinds, feed_forwards, strict=True):
        if kind not in ("full_attention", "linear_attention"):
            raise UnsupportedConfig("layer_types", f"{kind!r} is neither full_attention nor linear_attention")
        mixer = Branch(blocks=(full if kind == "full_attention" else delta,), pre=norm, name="mixer")
        layers.append(Layer((mixer, Branch(blocks=(feed_forward,), pre=norm))))
    return decoder(config, layers, final_norm=norm, names=names)


@architecture("Qwen3NextForCausalLM")
def qwen3_next(config: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3-Next."""
    reader = ConfigReader(config)
    dense = gated_mlp(config)
    moe = _moe(config, renormalize=reader.boolean("norm_topk_prob", True))
    only = set(reader.sequence("mlp_only_layers") if reader.has("mlp_only_layers") else ())
    every = reader.positive_int("decoder_sparse_step", 1)
    feed_forwards: list[BlockSpec] = [
        dense if index in only or (index + 1) % every else moe
        for index in range(reader.positive_int("num_hidden_layers"))
    ]
    key_heads = reader.positive_int("linear_num_key_heads", 16)
    linear = {
        "linear_attn.in_proj_qkvz": groups(key_heads, *_QKV, "delta.gate"),
        "linear_attn.in_proj_ba": groups(key_heads, "delta.beta", "delta.decay"),
    }
    return _decoder(config, feed_forwards, _names(reader.positive_int("num_attention_heads"), linear))


_SEPARATE = {
    "linear_attn.in_proj_qkv": rows(*_QKV),
    "linear_attn.in_proj_z": "delta.gate",
    "linear_attn.in_proj_b": "delta.beta",
    "linear_attn.in_proj_a": "delta.decay",
}


@architecture("Qwen3_5ForCausalLM")
def qwen3_5(config: Mapping[str, Any]) -> DecoderSpec:
    """The text half of dense Qwen3.5."""
    reader = ConfigReader(config)
    dense: list[BlockSpec] = [gated_mlp(config)] * reader.positive_int("num_hidden_layers")
    return _decoder(config, dense, _names(reader.positive_int("num_attention_heads"), _SEPARATE))


@architecture("Qwen3_5MoeForCausalLM")
def qwen3_5_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """The text half of Qwen3.5 with experts."""
    reader = ConfigReader(config)
    moes: list[BlockSpec] = [_moe(config, renormalize=True)] * reader.positive_int("num_hidden_layers")
    fused = {
        "mlp.experts.gate_up_proj": rows(
            "mlp.experts.{e}.gate.weight", "mlp.experts.{e}.up.weight", stacked=True
        ),
        "mlp.experts.down_proj": stacked("mlp.experts.{e}.down.weight"),
    }
    heads = reader.positive_int("num_attention_heads")
    return _decoder(config, moes, _names(heads, {**_SEPARATE, **fused}))
