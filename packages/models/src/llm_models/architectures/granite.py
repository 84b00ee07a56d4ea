"""Owns the specs of dense Granite and its relatives; knows nothing about weights or the runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import attention_windows, sandwich, with_defaults
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import BlockSpec, Branch, Layer, LayerSpec
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError
from llm_models.names import LLAMA_NAMES, Names
from llm_models.spec import DecoderSpec, Embedding, Head

_CLOVA_NAMES = LLAMA_NAMES.but({"post_norm1": "attention.post_norm", "post_norm2": "mlp.post_norm"})
_SWA_NAMES = LLAMA_NAMES.but({"self_attn.sinks": "attention.sinks"})


@architecture("GraniteForCausalLM")
def granite(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite 3: Llama with factors on embeddings, scores, residual branches and logits."""
    reader = ConfigReader(config)
    layer = scaled_layer(reader, granite_mixer(config, 1.0), _mlp(config), rms_norm(config))
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return granite_decoder(config, layers, rms_norm(config), 1 / reader.positive_float("logits_scaling", 1.0))


@architecture("HyperCLOVAXForCausalLM")
def hyperclovax(config: Mapping[str, Any]) -> DecoderSpec:
    """HyperCLOVA X: Granite with norms after the blocks too; its factor multiplies the logits."""
    reader, norm = ConfigReader(config), rms_norm(config)
    mixer, mlp = granite_mixer(config, None), _mlp(config)
    if reader.boolean("use_post_norm", True):
        layer = sandwich(mixer, mlp, norm, scale=reader.positive_float("residual_multiplier", 1.0))
    else:
        layer = scaled_layer(reader, mixer, mlp, norm)
    layers = [layer] * reader.positive_int("num_hidden_layers")
    return granite_decoder(config, layers, norm, reader.positive_float("logits_scaling", 1.0), _CLOVA_NAMES)


@architecture("GraniteSWAForCausalLM")
def granite_swa(config: Mapping[str, Any]) -> DecoderSpec:
    """Granite with attention sinks, three layers with a window to one without, and a rope base a layer."""
    config = with_defaults(config, sliding_window=128)
    reader, norm, mlp = ConfigReader(config), rms_norm(config, default=1e-5), _mlp(config)
    layers = [scaled_layer(reader, mixer, mlp, norm) for mixer in sink_mixers(config)]
    scale = 1 / reader.positive_float("logits_scaling", 1.0)
    return granite_decoder(config, layers, norm, scale, _SWA_NAMES, tied=True)


def sink_mixers(config: Mapping[str, Any]) -> list[Attention]:
    """Attention with sinks, with a window in three of four layers, and a rope base a layer."""
    reader = ConfigReader(config)
    windows = attention_windows(config, lambda layer: layer % 4 == 0)
    thetas: Sequence[Any] = [None] * len(windows)
    if reader.has("layer_rope_theta"):
        thetas = reader.sequence("layer_rope_theta")
    if len(thetas) != len(windows):
        raise ConfigError("layer_rope_theta", f"has {len(thetas)} entries for {len(windows)} layers")
    mixers = []
    for window, theta in zip(windows, thetas, strict=True):
        mixer = replace(granite_mixer(config, 1.0), sinks=True, sliding_window=window)
        if theta is not None:  # 0 stands for no rope.
            rope = None if mixer.rope is None or not theta else replace(mixer.rope, theta=float(theta))
            mixer = replace(mixer, rope=rope)
        mixers.append(mixer)
    return mixers


def granite_mixer(config: Mapping[str, Any], default_scale: float | None) -> Attention:
    """Attention whose scores have a factor in the config; `default_scale` where it has none."""
    reader = ConfigReader(config)
    bias = reader.boolean("attention_bias", False)
    mixer = attention(config, qkv_bias=bias, output_bias=bias)
    return replace(mixer, scale=reader.positive_float("attention_multiplier", default_scale or mixer.scale))


def _mlp(config: Mapping[str, Any]) -> BlockSpec:
    return gated_mlp(config, bias=ConfigReader(config).boolean("mlp_bias", False))


def scaled_layer(reader: ConfigReader, mixer: BlockSpec, mlp: BlockSpec, norm: Norm) -> Layer:
    """A norm before each block, and a factor on what each adds."""
    scale = reader.positive_float("residual_multiplier", 1.0)
    return Layer(tuple(Branch(blocks=(block,), pre=norm, scale=scale) for block in (mixer, mlp)))


def granite_decoder(
    config: Mapping[str, Any],
    layers: Sequence[LayerSpec],
    norm: Norm,
    logits_scale: float,
    names: Names = LLAMA_NAMES,
    *,
    tied: bool = False,
) -> DecoderSpec:
    """A decoder with factors on embeddings and logits."""
    reader = ConfigReader(config)
    scale = reader.positive_float("embedding_multiplier", 1.0)
    embedding = Embedding(vocab_size=reader.positive_int("vocab_size"), scale=scale)
    head = Head(tied=tied, scale=logits_scale)
    return decoder(config, layers, final_norm=norm, names=names, embedding=embedding, head=head, tied=tied)
