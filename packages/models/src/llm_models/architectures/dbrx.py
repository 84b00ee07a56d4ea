"""Owns the spec of DBRX; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, renamed
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import ROTARY_BUFFERS, Names, rows, stacked
from llm_models.spec import DecoderSpec

_FIELDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}


def _names(experts: int) -> Names:
    place = "ffn.experts.mlp"
    return Names(
        top={"transformer.wte": "embedding", "transformer.norm_f": "final_norm", "lm_head": "head"},
        layer="transformer.blocks.{i}",
        inside={
            "norm_attn_norm.norm_1": "attention.norm",
            "norm_attn_norm.attn.Wqkv": rows("attention.query", "attention.key", "attention.value"),
            "norm_attn_norm.attn.out_proj": "attention.output",
            "norm_attn_norm.norm_2": "mlp.norm",
            "ffn.router.layer": "mlp.router",
            f"{place}.w1": stacked("mlp.experts.{e}.gate.weight", flat_experts=experts),
            f"{place}.v1": stacked("mlp.experts.{e}.up.weight", flat_experts=experts),
            f"{place}.w2": stacked("mlp.experts.{e}.down.weight", flat_experts=experts, transposed=True),
        },
        optional_prefix="transformer.",
        harmless=ROTARY_BUFFERS,
    )


@architecture("DbrxForCausalLM")
def dbrx(config: Mapping[str, Any]) -> DecoderSpec:
    """DBRX: layer norms without shift, clamped queries, keys and values, sixteen experts."""
    mixing, sparse = config.get("attn_config") or {}, config.get("ffn_config") or {}
    attention_reader = ConfigReader(mixing, prefix="attn_config.")
    reader = ConfigReader(sparse, prefix="ffn_config.")
    config = renamed(config, _FIELDS)
    config["num_key_value_heads"] = attention_reader.positive_int("kv_n_heads", 1)
    has_clip = attention_reader.has("clip_qkv")
    mixer = replace(
        attention(config, theta=attention_reader.positive_float("rope_theta", 10000.0)),
        clip=attention_reader.positive_float("clip_qkv") if has_clip else None,
    )
    power = sparse.get("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1):
        raise UnsupportedConfig("ffn_config.moe_normalize_expert_weights", f"{power!r} is neither 1 nor null")
    activation = ConfigReader(sparse.get("ffn_act_fn") or {}, prefix="ffn_config.ffn_act_fn.")
    moe = MoE(
        num_experts=reader.positive_int("moe_num_experts", 4),
        expert_size=reader.positive_int("ffn_hidden_size", 3584),
        activation=activation.activation("name"),
        router=Router(top_k=reader.positive_int("moe_top_k", 1), renormalize=power is not None),
    )
    norm = Norm(eps=1e-5, kind="layer")
    layers = [pre_norm(mixer, moe, norm)] * ConfigReader(config).positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_names(moe.num_experts))
