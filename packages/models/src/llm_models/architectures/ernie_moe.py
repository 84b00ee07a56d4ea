"""Owns the spec of ERNIE 4.5 with experts; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, renamed, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.architectures.mixtures import expert_names, shared_mlp
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES
from llm_models.spec import DecoderSpec, Head

_NAMES = LLAMA_NAMES.but(
    {
        **expert_names(shared="shared_experts"),
        "mlp.moe_statics.e_score_correction_bias": "mlp.router.correction",
    },
    # Layers that predict several tokens at once.
    harmless=(r"model\.mtp_.*",),
)


@architecture("Ernie4_5_MoeForCausalLM")
def ernie_moe(config: Mapping[str, Any]) -> DecoderSpec:
    """ERNIE 4.5 21B-A3B and 300B-A47B."""
    config = renamed(config, {"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"})
    config = with_defaults(config, moe_layer_start_index=1, moe_layer_end_index=-1)
    reader, norm = ConfigReader(config), rms_norm(config, default=1e-5)
    bias = reader.boolean("use_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, theta=500000.0, interleaved=True)
    size = reader.positive_int("moe_intermediate_size", 1536)
    moe = MoE(
        num_experts=reader.positive_int("moe_num_experts", 64),
        expert_size=size,
        activation=reader.activation(),
        router=Router(
            top_k=reader.positive_int("moe_k", 6), renormalize=True, correction=True, in_float32=True
        ),
        shared=shared_mlp(config, size * reader.whole_number("moe_num_shared_experts", 2), bias=bias),
    )
    dense, sparse = gated_mlp(config, bias=bias), _sparse_layers(reader)
    layers = [
        pre_norm(mixer, moe if layer in sparse else dense, norm)
        for layer in range(reader.positive_int("num_hidden_layers"))
    ]
    head = Head(tied=True, bias=bias)
    return decoder(config, layers, final_norm=norm, names=_NAMES, head=head, tied=True)


def _sparse_layers(reader: ConfigReader) -> set[int]:
    count, every = reader.positive_int("num_hidden_layers"), reader.positive_int("moe_layer_interval", 1)
    first, last = int(reader.number("moe_layer_start_index")), int(reader.number("moe_layer_end_index"))
    last = count - 1 if last == -1 else last
    return {layer for layer in range(count) if first <= layer <= last and not (layer + 1) % every}
