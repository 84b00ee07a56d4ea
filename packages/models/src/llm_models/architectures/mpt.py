"""Owns the spec of MPT: ALiBi, no biases."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, head_size_of, renamed
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import Names, rows
from llm_models.spec import DecoderSpec

_FIELDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}
_NAMES = Names(
    top={"transformer.wte": "embedding", "transformer.norm_f": "final_norm", "lm_head": "head"},
    layer="transformer.blocks.{i}",
    inside={
        "norm_1": "attention.norm",
        "attn.Wqkv": rows("attention.query", "attention.key", "attention.value"),
        "attn.out_proj": "attention.output",
        "norm_2": "mlp.norm",
        "ffn.up_proj": "mlp.up",
        "ffn.down_proj": "mlp.down",
    },
    optional_prefix="transformer.",
)


def _slopes(num_heads: int, largest: float) -> tuple[float, ...]:
    """MPT's own order of slopes where the heads are no power of two."""
    power = 1 << (num_heads - 1).bit_length()
    slopes = [2.0 ** (-largest * (index + 1) / power) for index in range(power)]
    return tuple(slopes) if power == num_heads else tuple((slopes[1::2] + slopes[::2])[:num_heads])


@architecture("MptForCausalLM", "MPTForCausalLM")
def mpt(config: Mapping[str, Any]) -> DecoderSpec:
    """MPT with ALiBi, as all published models are."""
    config = renamed(config, _FIELDS)
    reader, size = ConfigReader(config), head_size_of(config)
    options = reader.section("attn_config") or ConfigReader({}, prefix="attn_config.")
    for field in ("qk_ln", "prefix_lm"):
        options.refuse(field, "is not supported")
    heads = reader.positive_int("num_attention_heads")
    norm = Norm(eps=reader.positive_float("layer_norm_epsilon", 1e-5), kind="layer")
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        scale=options.positive_float("softmax_scale", size**-0.5),
        alibi_slopes=_slopes(heads, options.positive_float("alibi_bias_max", 8)),
        clip=options.positive_float("clip_qkv") if options.has("clip_qkv") else None,
    )
    mlp = MLP(intermediate_size=4 * reader.positive_int("hidden_size"), activation="gelu", gated=False)
    layers = [pre_norm(mixer, mlp, norm)] * reader.positive_int("num_hidden_layers")
    return decoder(config, layers, final_norm=norm, names=_NAMES, tied=True)
