"""Owns the specs of Gemma 4; knows nothing about weights or the runtime."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.activations import Activation
from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, layer_kinds, rms_norm
from llm_models.architectures.gemma import GEMMA2_NAMES
from llm_models.architectures.layouts import FULL, SLIDING, attention_windows, every_nth, with_defaults
from llm_models.architectures.text_part import text_config, text_names
from llm_models.blocks.attention import Attention, QKNorm
from llm_models.blocks.layer import Branch, Layer, Normed
from llm_models.blocks.layer_input import InputTables, LayerInput, ScaledLayer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE, Router
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError
from llm_models.names import Names, rows, stacked
from llm_models.rope import FrequencyFactors, Rope
from llm_models.spec import DecoderSpec, Embedding, Head

_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
}
_UNIFIED_DEFAULTS = _DEFAULTS | {"sliding_window": 1024, "max_position_embeddings": 262144}
_ROPES: Mapping[str, Mapping[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_NAMES = GEMMA2_NAMES.but(
    {
        "per_layer_input_gate": "layer_input.gate",
        "per_layer_projection": "layer_input.projection",
        "post_per_layer_input_norm": "layer_input.post_norm",
        "layer_scalar": "scale",
    },
    top={
        "model.embed_tokens_per_layer": "layers.{i}.layer_inputs.table",
        "model.per_layer_model_projection": "layers.{i}.layer_inputs.projection",
        "model.per_layer_projection_norm": "layers.{i}.layer_inputs.norm",
    },
)
_MIXTURE_NAMES = _NAMES.but(
    {
        "post_feedforward_layernorm_1": "mlp.post_norm",
        "pre_feedforward_layernorm_2": "mixture.experts_norm",
        "post_feedforward_layernorm_2": "mixture.post_norm",
        "post_feedforward_layernorm": "feed_forward.post_norm",
        "router.proj": "mixture.router",
        "router.scale": "mixture.router.norm.weight",
        "router.per_expert_scale": "mixture.router.expert_scales",
        "experts.gate_up_proj": rows(
            "mixture.experts.{e}.gate.weight", "mixture.experts.{e}.up.weight", stacked=True
        ),
        "experts.down_proj": stacked("mixture.experts.{e}.down.weight"),
    }
)
# What tells the parts for pictures and sound from the text part.
_OTHER_PARTS = (r"(model\.)?(vision_\w+|audio_\w+|embed_vision|embed_audio|multi_modal_projector)\..*",)


@architecture("Gemma4ForCausalLM")
def gemma4(config: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 4: Gemma 3 with wider heads in full layers, shared keys and values, inputs of single layers."""
    return _gemma4(with_defaults(config, hidden_size_per_layer_input=256, **_DEFAULTS), _names(config))


@architecture("Gemma4ForConditionalGeneration")
def gemma4_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal Gemma 4."""
    text = text_config(config, tied=True)
    names = text_names(_names(text), "model.language_model.", "language_model.model.", harmless=_OTHER_PARTS)
    return _gemma4(with_defaults(text, hidden_size_per_layer_input=256, **_DEFAULTS), names)


@architecture("Gemma4UnifiedForCausalLM")
def gemma4_unified(config: Mapping[str, Any]) -> DecoderSpec:
    """The Gemma 4 that reads pictures without an encoder: no inputs of single layers."""
    return _gemma4(with_defaults(config, **_UNIFIED_DEFAULTS), _NAMES)


@architecture("Gemma4UnifiedForConditionalGeneration")
def gemma4_unified_text(config: Mapping[str, Any]) -> DecoderSpec:
    """The text part of the multimodal unified Gemma 4."""
    text = text_config(config, tied=True)
    names = text_names(_names(text), "model.language_model.", "language_model.model.", harmless=_OTHER_PARTS)
    return _gemma4(with_defaults(text, **_UNIFIED_DEFAULTS), names)


def _gemma4(config: Mapping[str, Any], names: Names) -> DecoderSpec:
    reader, norm = ConfigReader(config), rms_norm(config)
    if config.get("use_bidirectional_attention") == "all":
        reader.refuse("use_bidirectional_attention", "this is a decoder")
    kinds = _kinds(config)
    config = {**config, "layer_types": kinds}
    windows, sources = attention_windows(config, every_nth(6)), _shared_sources(config, kinds)
    size = reader.whole_number("hidden_size_per_layer_input", 0)
    layers = []
    for index, (window, source) in enumerate(zip(windows, sources, strict=True)):
        mixer = _mixer(config, index, kinds[index], window, source)
        mlp = _mlp(reader, is_shared=source is not None)
        branches = [Branch(blocks=(mixer,), pre=norm, post=norm), _feed_forward(config, mlp)]
        if size:
            block = LayerInput(layer=index, size=size, activation=_activation(reader))
            branches.append(Branch(blocks=(block,), post=norm))
        tables = _tables(config, size, len(kinds)) if size and index == 0 else None
        layers.append(ScaledLayer(layer=Layer(tuple(branches)), tables=tables))
    has_cap = reader.has("final_logit_softcapping")
    scale = math.sqrt(reader.positive_int("hidden_size"))
    return decoder(
        config,
        layers,
        final_norm=norm,
        names=_with_shared(config, names, sources),
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), scale=scale),
        head=Head(tied=True, soft_cap=reader.positive_float("final_logit_softcapping") if has_cap else None),
        tied=True,
    )


def _names(config: Mapping[str, Any]) -> Names:
    has_experts = ConfigReader(config).boolean("enable_moe_block", False)
    return _MIXTURE_NAMES if has_experts else _NAMES


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of every layer; the last one always sees everything."""
    layers = ConfigReader(config).positive_int("num_hidden_layers")
    kinds = layer_kinds(config) or [FULL if every_nth(6)(layer) else SLIDING for layer in range(layers)]
    return [*kinds[:-1], FULL]


def _shared_sources(config: Mapping[str, Any], kinds: list[str]) -> list[int | None]:
    """For every layer without keys of its own: the last layer of its kind that has some."""
    first = len(kinds) - ConfigReader(config).whole_number("num_kv_shared_layers", 0)
    if not 0 < first <= len(kinds) or set(kinds[:first]) != set(kinds):
        raise ConfigError("num_kv_shared_layers", "leaves no keys to share to some kind of layer")
    last = {kind: index for index, kind in enumerate(kinds[:first])}
    return [None] * first + [last[kind] for kind in kinds[first:]]


def _mixer(
    config: Mapping[str, Any], index: int, kind: str, window: int | None, source: int | None
) -> Attention:
    reader, norm = ConfigReader(config), rms_norm(config)
    bias = reader.boolean("attention_bias", False)
    ropes = reader.section("rope_parameters") or ConfigReader(_ROPES)
    section = ropes.section(kind) or ConfigReader(_ROPES[kind])
    theta = section.positive_float("rope_theta", float(_ROPES[kind]["rope_theta"]))
    is_proportional = section.string("rope_type", "default") == "proportional"
    own = {**config, **_overrides(config, index, kind)}
    if is_proportional:
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    else:
        own["rope_parameters"] = config.get("rope_parameters") or _ROPES
    mixer = attention(own, qkv_bias=bias, output_bias=bias, layer_type=kind, theta=theta)
    if is_proportional and mixer.rope is not None:
        share, factor = (
            section.positive_float("partial_rotary_factor", 1.0),
            section.positive_float("factor", 1.0),
        )
        mixer = replace(mixer, rope=_proportional(mixer.rope, share, factor))
    return replace(
        mixer,
        scale=1.0,
        sliding_window=window,
        qk_norm=QKNorm(norm=norm),
        value_norm=replace(norm, weight=False),
        kv_from=source,
    )


def _proportional(rope: Rope, share: float, factor: float) -> Rope:
    """Only the first share of the pairs turns, with the wavelengths of whole heads."""
    turning = int(share * rope.rotary_size // 2)
    still = rope.rotary_size // 2 - turning
    return replace(rope, scaling=FrequencyFactors(factors=(factor,) * turning + (math.inf,) * still))


def _overrides(config: Mapping[str, Any], index: int, kind: str) -> Mapping[str, Any]:
    """What differs in a layer: `per_layer_config`, or the two fields for full layers that it came from."""
    layers = ConfigReader(config).section("per_layer_config")
    if layers is not None:
        # Keys are layer numbers, filled up with zeros to the same length.
        names = [name for name in config["per_layer_config"] if str(name).isdigit() and int(name) == index]
        section = layers.section(names[0]) if names else None
        fields = ("head_dim", "num_key_value_heads")
        return {} if section is None else {f: section.positive_int(f) for f in fields if section.has(f)}
    if kind != FULL:
        return {}
    overrides = {"head_dim": config.get("global_head_dim", 512)}
    if config.get("attention_k_eq_v") and config.get("num_global_key_value_heads") is not None:
        overrides["num_key_value_heads"] = config["num_global_key_value_heads"]
    return overrides


def _activation(reader: ConfigReader) -> Activation:
    return reader.activation("hidden_activation", "gelu_pytorch_tanh")


def _mlp(reader: ConfigReader, *, is_shared: bool) -> MLP:
    is_wide = is_shared and reader.boolean("use_double_wide_mlp", False)
    width = reader.positive_int("intermediate_size") * (2 if is_wide else 1)
    return MLP(intermediate_size=width, activation=_activation(reader))


def _feed_forward(config: Mapping[str, Any], mlp: MLP) -> Branch:
    """The MLP, or beside it experts that read, as their router, the stream through norms of their own."""
    reader, norm = ConfigReader(config), rms_norm(config)
    if not reader.boolean("enable_moe_block", False):
        return Branch(blocks=(mlp,), pre=norm, post=norm)
    router = Router(
        top_k=reader.positive_int("top_k_experts"),
        renormalize=True,
        renormalize_eps=0.0,
        norm=norm,
        input_scale=1 / math.sqrt(reader.positive_int("hidden_size")),
        expert_scales=True,
    )
    experts = MoE(
        num_experts=reader.positive_int("num_experts"),
        expert_size=reader.positive_int("moe_intermediate_size"),
        router=router,
        activation=_activation(reader),
        experts_norm=norm,
        name="mixture",
    )
    blocks = (Normed(block=mlp, norm=norm, post=norm), Normed(block=experts, post=norm))
    return Branch(blocks=blocks, post=norm, name="feed_forward")


def _tables(config: Mapping[str, Any], size: int, layers: int) -> InputTables:
    reader = ConfigReader(config)
    rows = reader.positive_int("vocab_size_per_layer_input", 262144)
    if rows < reader.positive_int("vocab_size"):
        raise ConfigError("vocab_size_per_layer_input", f"{rows} is below vocab_size")
    return InputTables(vocab_size=rows, layers=layers, size=size, norm=rms_norm(config))


def _with_shared(config: Mapping[str, Any], names: Names, sources: list[int | None]) -> Names:
    """Names that let values be the keys' projection, and layers keep keys that they do not use."""
    shared = "|".join(str(index) for index, source in enumerate(sources) if source is not None)
    if shared:
        names = names.but(harmless=(rf".*layers\.({shared})\.self_attn\.[kv]_(proj|norm)\..*",))
    if not ConfigReader(config).boolean("attention_k_eq_v", False):
        return names
    entries = names.inside or names.top
    doubled = {}
    for name, target in entries.items():
        if name.endswith("self_attn.v_proj"):
            doubled[f"{name}.weight"] = f"{target}.weight"
    for name, target in entries.items():
        if name.endswith("self_attn.k_proj"):
            value = str(target).replace("attention.key", "attention.value")
            doubled[f"{name}.weight"] = f"{value}.weight"
    return names.but(doubled) if names.inside else names.but(top=doubled)
