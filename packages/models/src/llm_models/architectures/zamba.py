"""Owns the specs of Zamba 1 and 2: Mamba layers, some led by transformer blocks that they share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.hybrid_parts import LINEAR, MAMBA2_NAMES, hybrid_kinds
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import BlockSpec, Branch, Layer, LayerSpec
from llm_models.blocks.mamba import Mamba
from llm_models.blocks.mamba2 import GatedNorm, Mamba2
from llm_models.blocks.shared_transformer import EmbeddingKeeper, LedLayer, SharedTransformer
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names, Target, alternating, rows
from llm_models.spec import DecoderSpec

_HYBRID = "hybrid"
_MAMBA_NAMES: Mapping[str, Target] = {
    "mamba.in_proj": alternating("mamba.x", "mamba.gate"),
    "mamba.conv1d": "mamba.conv",
    "mamba.x_proj_weight": "mamba.select.weight",
    "mamba.dt_proj_weight": "mamba.step.weight",
    "mamba.dt_proj_bias": "mamba.step.bias",
    "mamba.A_log": "mamba.A_log",
    "mamba.D": "mamba.D",
    "mamba.out_proj": "mamba.output",
}
_SHARED_NAMES: Mapping[str, Target] = {
    "input_layernorm": "shared.norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "pre_ff_layernorm": "mlp.norm",
    "feed_forward.gate_proj": "mlp.gate",
    "feed_forward.up_proj": "mlp.up",
    "feed_forward.gate_up_proj": rows("mlp.gate", "mlp.up"),
    "feed_forward.down_proj": "mlp.down",
    **{
        f"self_attn.linear_{letter}_adapter_list.{{e}}.{index}": f"attention.adapters.{{e}}.{name}.{side}"
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for index, side in enumerate(("down", "up"))
    },
    "feed_forward.gate_up_proj_adapter_list.{e}.0": "mlp.adapters.{e}.down",
    "feed_forward.gate_up_proj_adapter_list.{e}.1": rows(
        "mlp.adapters.{e}.gate.up", "mlp.adapters.{e}.up.up"
    ),
}


@architecture("ZambaForCausalLM")
def zamba(config: Mapping[str, Any]) -> DecoderSpec:
    """Zamba 1: one shared block, without positions."""
    config = with_defaults(config, hidden_act="gelu", max_position_embeddings=4096)
    reader = ConfigReader(config)
    width = reader.positive_int("hidden_size")
    rank = config.get("mamba_dt_rank", "auto")
    mixer = Mamba(
        inner_size=reader.positive_int("mamba_expand", 2) * width,
        state_size=reader.positive_int("mamba_d_state", 16),
        step_rank=math.ceil(width / 16) if rank == "auto" else reader.positive_int("mamba_dt_rank"),
        conv_width=reader.positive_int("mamba_d_conv", 4),
        activation=reader.activation("hidden_mamba_act"),
        conv_bias=reader.boolean("mamba_conv_bias", True),
        bias=reader.boolean("mamba_proj_bias", False),
        num_heads=reader.positive_int("n_mamba_heads", 2),
    )
    if reader.positive_int("attention_hidden_size", 2 * width) != 2 * width:
        raise UnsupportedConfig("attention_hidden_size", "is not twice the hidden size")
    shared = SharedTransformer(
        attention=replace(_attention(config), rope=None),
        mlp=gated_mlp(config),
        norm=rms_norm(config, default=1e-5),
    )
    period, offset = (
        reader.positive_int("attn_layer_period", 6),
        reader.whole_number("attn_layer_offset", 4),
    )
    count = reader.positive_int("num_hidden_layers")
    default = [LINEAR, LINEAR, _HYBRID] + [
        _HYBRID if index % period == offset else LINEAR for index in range(count - 3)
    ]
    return _zamba(config, shared, mixer, default, 1, _names("shared_transf", _MAMBA_NAMES))


@architecture("Zamba2ForCausalLM")
def zamba2(config: Mapping[str, Any]) -> DecoderSpec:
    """Zamba 2: shared blocks that take turns, with adapters for each layer."""
    config = with_defaults(config, hidden_act="gelu", max_position_embeddings=4096)
    reader = ConfigReader(config)
    reader.refuse("use_long_context", "stretched positions are not supported")
    width, bias = reader.positive_int("hidden_size"), reader.boolean("add_bias_linear", False)
    heads, inner = reader.positive_int("n_mamba_heads", 8), reader.positive_int("mamba_expand", 2) * width
    mixer = Mamba2(
        num_heads=heads,
        head_size=inner // heads,
        state_size=reader.positive_int("mamba_d_state", 64),
        num_groups=reader.positive_int("mamba_ngroups", 1),
        conv_width=reader.positive_int("mamba_d_conv", 4),
        bias=bias,
        norm=GatedNorm(eps=1e-5),
        step_limit=(reader.number("time_step_min", 0.001), math.inf),
    )
    mixer_attention, rank = _attention(config), reader.positive_int("adapter_rank", 128)
    if not reader.boolean("use_mem_rope", False):
        mixer_attention = replace(mixer_attention, rope=None)
    config = with_defaults(config, intermediate_size=4 * width)
    shared = SharedTransformer(
        attention=mixer_attention,
        mlp=gated_mlp(config, bias=bias),
        norm=rms_norm(config, default=1e-5),
        attention_adapter_rank=rank if reader.boolean("use_shared_attention_adapter", False) else None,
        mlp_adapter_rank=rank,
    )
    blocks = reader.positive_int("num_mem_blocks", 1)
    names = _names("shared_transformer", MAMBA2_NAMES)
    return _zamba(config, shared, mixer, None, blocks, names)


def _attention(config: Mapping[str, Any]) -> Attention:
    """Attention from twice the hidden size; scores are scaled as if heads were half as wide."""
    reader = ConfigReader(config)
    default = 2 * reader.positive_int("hidden_size") // reader.positive_int("num_attention_heads")
    size = reader.positive_int("attention_head_dim", default)
    mixer = attention({**config, "head_dim": size})
    return replace(mixer, scale=(size / 2) ** -0.5)


def _zamba(
    config: Mapping[str, Any],
    shared: SharedTransformer,
    mixer: BlockSpec,
    default: Sequence[str] | None,
    blocks: int,
    names: Names,
) -> DecoderSpec:
    norm = rms_norm(config, default=1e-5)
    kinds = hybrid_kinds(config, default, (LINEAR, _HYBRID))
    led = [index for index, kind in enumerate(kinds) if kind == _HYBRID]
    layers: list[LayerSpec] = []
    for index, kind in enumerate(kinds):
        if kind == LINEAR:
            layers.append(Layer((Branch(blocks=(mixer,), pre=norm, name="mixer"),)))
            continue
        number = led.index(index)
        owner = led[number % blocks]
        layers.append(
            LedLayer(
                shared=shared,
                owner=owner,
                adapter=number,
                adapters=tuple(range(number, len(led), blocks)) if owner == index else (),
                mixer=mixer,
                norm=norm,
            )
        )
    layers[0] = EmbeddingKeeper(layers[0])
    # Some checkpoints hold the shared weights in each layer that uses them.
    copies = "|".join(str(index) for index in led[blocks:])
    harmless = (rf"model\.layers\.({copies})\.shared_transf(ormer)?\..*",)
    return decoder(config, layers, final_norm=norm, names=names.but(harmless=harmless), tied=True)


def _names(shared: str, mamba: Mapping[str, Target]) -> Names:
    inside: dict[str, Target] = {
        "input_layernorm": "mixer.norm",
        "mamba_decoder.input_layernorm": "mixer.norm",
        "linear": "shared.output",
        **mamba,
        **{f"mamba_decoder.{name}": target for name, target in mamba.items()},
        **{f"{shared}.{name}": target for name, target in _SHARED_NAMES.items()},
    }
    return Names(
        top={"model.embed_tokens": "embedding", "model.final_layernorm": "final_norm", "lm_head": "head"},
        layer="model.layers.{i}",
        inside=inside,
        optional_prefix="model.",
    )
