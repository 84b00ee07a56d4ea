"""Owns the spec of Nemotron H: one mixer a layer, be it Mamba 2, attention, a feed-forward or experts."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.hybrid_parts import FULL, LINEAR, MAMBA2_NAMES, hybrid_kinds
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mamba2 import GatedNorm, Mamba2
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names
from llm_models.spec import DecoderSpec

_MIXER_NAMES = {
    "mixer.q_proj": "attention.query",
    "mixer.k_proj": "attention.key",
    "mixer.v_proj": "attention.value",
    "mixer.o_proj": "attention.output",
    "mixer.up_proj": "mlp.up",
    "mixer.down_proj": "mlp.down",
    "mixer.gate": "mlp.router",
    "mixer.gate.e_score_correction_bias": "mlp.router.correction",
    "mixer.experts.{e}.up_proj": "mlp.experts.{e}.up",
    "mixer.experts.{e}.down_proj": "mlp.experts.{e}.down",
    "mixer.shared_experts.up_proj": "mlp.shared.up",
    "mixer.shared_experts.down_proj": "mlp.shared.down",
    "mixer.fc1_latent_proj": "mlp.latent_in",
    "mixer.fc2_latent_proj": "mlp.latent_out",
}
_NAMES = Names(
    top={"backbone.embeddings": "embedding", "backbone.norm_f": "final_norm", "lm_head": "head"},
    layer="backbone.layers.{i}",
    inside={
        "norm": "mixer.norm",
        **{name.replace("mamba.", "mixer."): target for name, target in MAMBA2_NAMES.items()},
        **_MIXER_NAMES,
    },
    # Layers that predict further tokens at once.
    harmless=(r"mtp\..*",),
)
_PATTERN = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
# The names that files on the Hub give the fields of the mixer, to those of transformers.
_OLD_FIELDS = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "time_step_min": "mamba_dt_min",
    "use_conv_bias": "mamba_conv_bias",
}


@architecture("NemotronHForCausalLM")
def nemotron_h(config: Mapping[str, Any]) -> DecoderSpec:
    """Nemotron H and Nemotron 3: attention without positions, squared ReLU without gates."""
    old = {new: config[field] for new, field in _OLD_FIELDS.items() if field in config}
    config = with_defaults({**config, **old}, num_key_value_heads=8, max_position_embeddings=4096)
    reader, norm = ConfigReader(config), rms_norm(config, "layer_norm_epsilon", default=1e-5)
    reader.refuse("sliding_window", "Nemotron H's attention has no window")
    kinds = _kinds(config)
    full = attention(config, default_head_size=128)
    mlp = _mlp(reader, reader.positive_int("intermediate_size", 21504))
    mixers: dict[str, BlockSpec] = {FULL: replace(full, rope=None), LINEAR: _mamba2(config), "mlp": mlp}
    if "moe" in kinds:
        mixers["moe"] = _moe(reader)
    layers = [Layer((Branch(blocks=(mixers[kind],), pre=norm, name="mixer"),)) for kind in kinds]
    return decoder(config, layers, final_norm=norm, names=_NAMES)


def _kinds(config: Mapping[str, Any]) -> list[str]:
    reader = ConfigReader(config)
    default = [LINEAR, "moe", FULL, "mlp"]
    if reader.has("hybrid_override_pattern"):
        pattern = reader.string("hybrid_override_pattern")
        unknown = set(pattern) - _PATTERN.keys()
        if unknown:
            raise UnsupportedConfig("hybrid_override_pattern", f"{min(unknown)!r} is no kind of layer")
        default = [_PATTERN[letter] for letter in pattern]
    return hybrid_kinds({**config, "num_hidden_layers": None}, default, (FULL, LINEAR, "mlp", "moe"))


def _mamba2(config: Mapping[str, Any]) -> Mamba2:
    reader = ConfigReader(config)
    if reader.activation("mamba_hidden_act") != "silu":
        raise UnsupportedConfig("mamba_hidden_act", "a state space mixer has silu only")
    return Mamba2(
        num_heads=reader.positive_int("mamba_num_heads", 128),
        head_size=reader.positive_int("mamba_head_dim", 64),
        state_size=reader.positive_int("ssm_state_size", 128),
        num_groups=reader.positive_int("n_groups", 8),
        conv_width=reader.positive_int("conv_kernel", 4),
        conv_bias=reader.boolean("use_conv_bias", True),
        bias=reader.boolean("use_bias", False),
        norm=GatedNorm(eps=reader.positive_float("layer_norm_epsilon", 1e-5)),
        # The reference takes the least step size from here and does not read time_step_limit.
        step_limit=(reader.number("time_step_min", 0.001), math.inf),
    )


def _mlp(reader: ConfigReader, size: int, name: str = "mlp") -> MLP:
    return MLP(
        intermediate_size=size,
        activation=reader.activation("mlp_hidden_act", "relu2"),
        gated=False,
        bias=reader.boolean("mlp_bias", False),
        name=name,
    )


def _moe(reader: ConfigReader) -> MoE:
    shared = _mlp(reader, reader.positive_int("moe_shared_expert_intermediate_size", 7688), "shared")
    return MoE(
        num_experts=reader.positive_int("n_routed_experts", 8),
        expert_size=reader.positive_int("moe_intermediate_size", 7688),
        activation=shared.activation,
        gated=False,
        router=Router(
            top_k=reader.positive_int("num_experts_per_tok", 2),
            scoring="sigmoid",
            correction=True,
            groups=reader.positive_int("n_group", 1),
            top_groups=reader.positive_int("topk_group", 1),
            renormalize=reader.boolean("norm_topk_prob", True),
            scale=reader.positive_float("routed_scaling_factor", 1.0),
            in_float32=True,
        ),
        shared=shared,
        latent_size=reader.positive_int("moe_latent_size") if reader.has("moe_latent_size") else None,
        latent_bias=reader.boolean("mlp_bias", False),
    )
