"""Owns the spec of JetMoE; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.architectures.mixtures import stacked_names
from llm_models.blocks.expert_attention import ExpertAttention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, rows, stacked
from llm_models.rope import rope_from_config
from llm_models.spec import DecoderSpec

_ATTENTION = "self_attention"
_NAMES = LLAMA_NAMES.but(
    {
        f"{_ATTENTION}.kv_proj": rows("attention.key", "attention.value"),
        f"{_ATTENTION}.experts.router.layer": "attention.router",
        f"{_ATTENTION}.experts.input_linear.weight": stacked("attention.experts.{e}.query.weight"),
        f"{_ATTENTION}.experts.output_linear.weight": stacked("attention.experts.{e}.output.weight"),
        f"{_ATTENTION}.experts.bias": "attention.sum.bias",
        "mlp.router.layer": "mlp.router",
        **stacked_names("mlp.input_linear.weight", "mlp.output_linear.weight"),
        "mlp.bias": "mlp.sum.bias",
    }
)


@architecture("JetMoeForCausalLM")
def jetmoe(config: Mapping[str, Any]) -> DecoderSpec:
    """JetMoE: experts in attention too."""
    config = with_defaults(config, num_local_experts=8, num_experts_per_tok=2, kv_channels=128)
    reader = ConfigReader(config)
    experts, top_k = reader.positive_int("num_local_experts"), reader.positive_int("num_experts_per_tok")
    size = reader.positive_int("kv_channels")
    mixer = ExpertAttention(
        num_experts=experts,
        top_k=top_k,
        num_kv_heads=reader.positive_int("num_key_value_heads", 16),
        head_size=size,
        scale=size**-0.5,
        rope=rope_from_config(
            config, head_size=size, max_positions=reader.positive_int("max_position_embeddings")
        ),
    )
    moe = MoE(
        num_experts=experts,
        expert_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("activation_function"),
        router=Router(top_k=top_k, scoring="softmax_after"),
        sum_bias=True,
    )
    # The layers' norms keep the reference's default, whatever the config says of the last one.
    layers = [pre_norm(mixer, moe, Norm(eps=1e-6))] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=rms_norm(config), names=_NAMES, tied=True)
