"""Owns the specs of T5 and its relatives (v1.1, Flan, mT5, UMT5); knows nothing about weights or the runtime.

Positions enter as biases of self attention, and scores are not scaled. T5 makes the biases in the first layer
of each stack and uses them in all; UMT5 has some in every layer.
"""

from collections.abc import Mapping
from typing import Any

from llm_models.activations import HF_ACTIVATIONS
from llm_models.architectures import architecture
from llm_models.architectures.common import rms_norm
from llm_models.architectures.encoder_decoder_parts import with_encoder
from llm_models.blocks.attention import Attention
from llm_models.blocks.cross_attention import CrossAttention
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.relative_bias import RelativeBias
from llm_models.config import ConfigReader, architecture_name
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names, Target, transposed
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec, Embedding, EncoderDecoderSpec, EncoderSpec, Head

# Nothing in the model ends at a length; the default of configs that name none.
_MAX_POSITIONS = 1 << 20
_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
_SELF: Mapping[str, Target] = {
    "layer.0.SelfAttention.q": "attention.query",
    "layer.0.SelfAttention.k": "attention.key",
    "layer.0.SelfAttention.v": "attention.value",
    "layer.0.SelfAttention.o": "attention.output",
    "layer.0.layer_norm": "attention.norm",
}
_CROSS: Mapping[str, Target] = {
    "layer.1.EncDecAttention.q": "cross_attention.query",
    "layer.1.EncDecAttention.k": "cross_attention.key",
    "layer.1.EncDecAttention.v": "cross_attention.value",
    "layer.1.EncDecAttention.o": "cross_attention.output",
    "layer.1.layer_norm": "cross_attention.norm",
}


def _feed_forward(index: int) -> Mapping[str, Target]:
    return {
        f"layer.{index}.DenseReluDense.wi": "mlp.up",
        f"layer.{index}.DenseReluDense.wi_0": "mlp.gate",
        f"layer.{index}.DenseReluDense.wi_1": "mlp.up",
        f"layer.{index}.DenseReluDense.wo": "mlp.down",
        f"layer.{index}.layer_norm": "mlp.norm",
    }


def _stack_names(side: str, inside: Mapping[str, Target], *, bias_everywhere: bool) -> Names:
    biases: Mapping[str, Target] = {_BIAS: transposed("attention.relative_bias.weight")}
    shared: Mapping[str, Target] = {
        f"{side}.block.0.{_BIAS}": transposed("layers.{i}.attention.relative_bias.weight")
    }
    return Names(
        top={f"{side}.final_layer_norm": "final_norm"} | ({} if bias_everywhere else dict(shared)),
        layer=f"{side}.block.{{i}}",
        inside={**inside, **(biases if bias_everywhere else {})},
        harmless=(
            rf"{side}\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        ),
    )


def _names(*, bias_everywhere: bool) -> Names:
    decoder = _stack_names(
        "decoder", {**_SELF, **_CROSS, **_feed_forward(2)}, bias_everywhere=bias_everywhere
    )
    encoder = _stack_names("encoder", {**_SELF, **_feed_forward(1)}, bias_everywhere=bias_everywhere)
    # Later releases have a head of their own; some that transformers 5 saved again have lost it.
    top: Mapping[str, Target] = {
        "shared": "embedding",
        "lm_head.weight": "head.weight",
        "shared.weight": "head.weight",
    }
    return with_encoder(decoder.but(top=top), encoder)


class _Parts:
    """Blocks of both stacks."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        reader = ConfigReader(config)
        reader.refuse("quantization_config", "quantized safetensors checkpoints are not supported")
        self.width = reader.positive_int("d_model", 512)
        self.heads, self.head_size = reader.positive_int("num_heads", 8), reader.positive_int("d_kv", 64)
        self.norm = rms_norm(config, "layer_norm_epsilon")
        self.bias = RelativeBias(
            num_buckets=reader.positive_int("relative_attention_num_buckets", 32),
            max_distance=reader.positive_int("relative_attention_max_distance", 128),
        )
        activation, gated = _activation(reader.string("feed_forward_proj", "relu"))
        self.mlp = MLP(
            intermediate_size=reader.positive_int("d_ff", 2048), activation=activation, gated=gated
        )
        self.vocabulary = reader.positive_int("vocab_size", 32128)
        self.num_layers = reader.positive_int("num_layers", 6)

    def attention(self, *, causal: bool) -> Attention:
        return Attention(
            num_heads=self.heads,
            num_kv_heads=self.heads,
            head_size=self.head_size,
            scale=1.0,
            relative_bias=self.bias,
            causal=causal,
        )

    def encoder_layers(self) -> tuple[Layer, ...]:
        mixer = Branch(blocks=(self.attention(causal=False),), pre=self.norm)
        return (Layer((mixer, Branch(blocks=(self.mlp,), pre=self.norm))),) * self.num_layers

    def decoder_layer(self) -> Layer:
        cross = CrossAttention(
            num_heads=self.heads, head_size=self.head_size, scale=1.0, memory_size=self.width
        )
        blocks = (self.attention(causal=True), cross, self.mlp)
        return Layer(tuple(Branch(blocks=(block,), pre=self.norm) for block in blocks))


def _activation(projection: str) -> tuple[Any, bool]:
    """The activation, and whether there is a gate."""
    gate, _, name = projection.rpartition("-")
    name = "gelu_new" if projection == "gated-gelu" else name
    if gate not in ("", "gated") or name not in HF_ACTIVATIONS:
        raise UnsupportedConfig("feed_forward_proj", f"{projection!r} is not supported")
    return HF_ACTIVATIONS[name], gate == "gated"


def _encoder_decoder(
    config: Mapping[str, Any], *, scaled: bool, bias_everywhere: bool = False
) -> EncoderDecoderSpec:
    parts, reader = _Parts(config), ConfigReader(config)
    return EncoderDecoderSpec(
        encoder=EncoderSpec(
            hidden_size=parts.width,
            max_positions=_MAX_POSITIONS,
            embedding=Embedding(vocab_size=parts.vocabulary),
            layers=parts.encoder_layers(),
            final_norm=parts.norm,
            shares_table=True,
        ),
        decoder=DecoderSpec(
            architecture=architecture_name(config),
            hidden_size=parts.width,
            max_positions=_MAX_POSITIONS,
            embedding=Embedding(vocab_size=parts.vocabulary),
            layers=(parts.decoder_layer(),) * reader.positive_int("num_decoder_layers", parts.num_layers),
            final_norm=parts.norm,
            head=Head(tied=scaled, scale=parts.width**-0.5 if scaled else 1.0),
            names=_names(bias_everywhere=bias_everywhere),
        ),
        start=reader.whole_number("decoder_start_token_id", reader.whole_number("pad_token_id", 0)),
    )


def _is_scaled(config: Mapping[str, Any]) -> bool:
    """Whether the head is the embedding, and the states are scaled before it (T5 before v1.1).

    transformers 5 writes `scale_decoder_outputs`; before, an untied head meant no scale.
    """
    reader = ConfigReader(config)
    return reader.boolean("scale_decoder_outputs", reader.boolean("tie_word_embeddings", True))


@architecture("T5ForConditionalGeneration")
def t5(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """T5, T5 v1.1 and Flan-T5."""
    return _encoder_decoder(config, scaled=_is_scaled(config))


@architecture("MT5ForConditionalGeneration")
def mt5(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """MT5: T5 v1.1 for many languages."""
    return _encoder_decoder(config, scaled=False)


@architecture("UMT5ForConditionalGeneration")
def umt5(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """UMT5: biases in every layer."""
    return _encoder_decoder(config, scaled=_is_scaled(config), bias_everywhere=True)


@architecture("T5EncoderModel", "MT5EncoderModel")
def t5_encoder(config: Mapping[str, Any]) -> PooledSpec:
    """The encoder alone as an embedder: the mean of its states, unless the folder says otherwise."""
    parts = _Parts(config)
    names = _stack_names("encoder", {**_SELF, **_feed_forward(1)}, bias_everywhere=False)
    body = DecoderSpec(
        architecture=architecture_name(config),
        hidden_size=parts.width,
        max_positions=_MAX_POSITIONS,
        embedding=Embedding(vocab_size=parts.vocabulary),
        layers=parts.encoder_layers(),
        final_norm=parts.norm,
        head=Head(tied=True),
        names=names.but(top={"shared": "embedding"}),
    )
    return PooledSpec(body=body, pooling="mean")
