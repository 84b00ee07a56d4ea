"""Owns the specs of BART and its relatives; knows nothing about weights or the runtime.

They differ in where norms stand and in how positions enter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.encoder_decoder_parts import with_encoder
from llm_models.blocks.attention import Attention
from llm_models.blocks.cross_attention import CrossAttention
from llm_models.blocks.layer import Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader, architecture_name
from llm_models.errors import ConfigError
from llm_models.names import Names, Target
from llm_models.spec import (
    DecoderSpec,
    Embedding,
    EncoderDecoderSpec,
    EncoderSpec,
    Head,
    LearnedPositions,
    SinusoidalPositions,
)

NORM = Norm(eps=1e-5, kind="layer", bias=True)


def stack_names(side: str, *, pre_norm: bool, top: Mapping[str, Target]) -> Names:
    """The names of the encoder or the decoder, where their norms stand before or after the blocks."""
    norm = "norm" if pre_norm else "after_norm"
    inside: dict[str, Target] = {
        "fc1": "mlp.up",
        "fc2": "mlp.down",
        "final_layer_norm": f"mlp.{norm}",
    }
    for module, block in (("self_attn", "attention"), ("encoder_attn", "cross_attention")):
        for letter, part in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
            inside[f"{module}.{letter}_proj"] = f"{block}.{part}"
        inside[f"{module}_layer_norm"] = f"{block}.{norm}"
    return Names(
        top={f"model.{side}.{name}": target for name, target in top.items()},
        layer=f"model.{side}.layers.{{i}}",
        inside=inside,
        optional_prefix="model.",
    )


def layer(config: Mapping[str, Any], side: str, *, pre_norm: bool, key_bias: bool = True) -> Layer:
    """A layer of the encoder or the decoder."""
    reader = ConfigReader(config)
    width, heads = reader.positive_int("d_model"), reader.positive_int(f"{side}_attention_heads")
    if width % heads:
        raise ConfigError("d_model", f"is no multiple of {side}_attention_heads {heads}")
    size = width // heads
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        scale=size**-0.5,
        qkv_bias=True,
        key_bias=key_bias,
        output_bias=True,
        causal=side == "decoder",
    )
    cross = CrossAttention(
        num_heads=heads, head_size=size, scale=size**-0.5, memory_size=width, bias=True, key_bias=key_bias
    )
    mlp = MLP(
        intermediate_size=reader.positive_int(f"{side}_ffn_dim"),
        activation=reader.activation("activation_function", "gelu"),
        gated=False,
        bias=True,
    )
    blocks = (mixer, cross, mlp) if side == "decoder" else (mixer, mlp)
    pre, after = (NORM, None) if pre_norm else (None, NORM)
    return Layer(tuple(Branch(blocks=(block,), pre=pre, after=after) for block in blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """What tells the families apart.

    Attributes:
        pre_norm: Norms stand before the blocks, and one after each stack.
        embedding_norm: There is a norm after the embedding.
        offset: Row of the first position.
        added_rows: Rows of the table of positions beyond `max_position_embeddings`.
        sinusoidal: Positions are sines and cosines, not learned.
        reaches_slowest: See `SinusoidalPositions`.
    """

    pre_norm: bool
    embedding_norm: bool
    offset: int = 0
    added_rows: int = 0
    sinusoidal: bool = False
    reaches_slowest: bool = False

    def positions(self, count: int) -> LearnedPositions | SinusoidalPositions:
        """The table for sequences of up to `count` tokens."""
        rows = count + self.added_rows
        if self.sinusoidal:
            return SinusoidalPositions(count=rows, offset=self.offset, reaches_slowest=self.reaches_slowest)
        return LearnedPositions(count=rows, offset=self.offset)

    def names(self, *, shares_table: bool) -> Names:
        """Of both stacks."""
        top: dict[str, Target] = {}
        if not self.sinusoidal:
            top["embed_positions"] = "positions"
        if self.embedding_norm:
            top["layernorm_embedding"] = "embedding_norm"
        if self.pre_norm:
            top["layer_norm"] = "final_norm"
        decoder = stack_names("decoder", pre_norm=self.pre_norm, top={"embed_tokens": "embedding", **top})
        own = {} if shares_table else {"embed_tokens": "embedding"}
        encoder = stack_names("encoder", pre_norm=self.pre_norm, top={**own, **top})
        return with_encoder(
            decoder.but(
                top={"model.shared": "embedding", "lm_head": "head", "final_logits_bias": "head.bias"},
                harmless=(
                    r"(model\.)?(shared|encoder\.embed_tokens|decoder\.embed_tokens)\.weight",
                    r"(model\.)?(en|de)coder\.embed_positions\.weights?",
                    r"(model\.)?(en|de)coder\.version",
                ),
            ),
            encoder,
        )


def _spec(config: Mapping[str, Any], variant: _Variant) -> EncoderDecoderSpec:
    reader = ConfigReader(config)
    reader.refuse("quantization_config", "quantized safetensors checkpoints are not supported")
    width, vocabulary = reader.positive_int("d_model"), reader.positive_int("vocab_size")
    count = reader.positive_int("max_position_embeddings", 1024)
    scale = width**0.5 if reader.boolean("scale_embedding", False) else 1.0
    shares_table = reader.boolean("share_encoder_decoder_embeddings", True)
    final_norm = NORM if variant.pre_norm else None

    def embedding(size: int) -> Embedding:
        norm = NORM if variant.embedding_norm else None
        return Embedding(vocab_size=size, scale=scale, positions=variant.positions(count), norm=norm)

    def layers(side: str) -> tuple[Layer, ...]:
        one = layer(config, side, pre_norm=variant.pre_norm)
        return (one,) * reader.positive_int(f"{side}_layers")

    return EncoderDecoderSpec(
        encoder=EncoderSpec(
            hidden_size=width,
            max_positions=count,
            embedding=embedding(vocabulary),
            layers=layers("encoder"),
            final_norm=final_norm,
            shares_table=shares_table,
        ),
        decoder=DecoderSpec(
            architecture=architecture_name(config),
            hidden_size=width,
            max_positions=count,
            embedding=embedding(reader.positive_int("decoder_vocab_size", vocabulary)),
            layers=layers("decoder"),
            final_norm=final_norm,
            head=Head(tied=reader.boolean("tie_word_embeddings", True), bias=True, bias_default=0.0),
            names=variant.names(shares_table=shares_table),
        ),
        start=reader.whole_number("decoder_start_token_id") if reader.has("decoder_start_token_id") else None,
    )


@architecture("BartForConditionalGeneration", "PLBartForConditionalGeneration")
def bart(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """BART: norms after the blocks, learned positions from row 2 on."""
    return _spec(config, _Variant(pre_norm=False, embedding_norm=True, offset=2, added_rows=2))


@architecture("MBartForConditionalGeneration")
def mbart(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """The multilingual BART: norms before the blocks."""
    return _spec(config, _Variant(pre_norm=True, embedding_norm=True, offset=2, added_rows=2))


@architecture("BlenderbotForConditionalGeneration")
def blenderbot(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Blenderbot: norms before the blocks, learned positions."""
    return _spec(config, _Variant(pre_norm=True, embedding_norm=False))


@architecture("PegasusForConditionalGeneration")
def pegasus(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Pegasus: norms before the blocks, sines and cosines."""
    return _spec(config, _Variant(pre_norm=True, embedding_norm=False, sinusoidal=True))


@architecture("MarianMTModel")
def marian(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Marian (OPUS-MT): norms after the blocks, sines and cosines, a bias of the scores."""
    return _spec(config, _Variant(pre_norm=False, embedding_norm=False, sinusoidal=True))


@architecture("M2M100ForConditionalGeneration")
def m2m100(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """M2M-100 and NLLB: sines and cosines from the row after the padding's on."""
    offset = ConfigReader(config).whole_number("pad_token_id", 1) + 1
    return _spec(
        config,
        _Variant(
            pre_norm=True,
            embedding_norm=False,
            offset=offset,
            added_rows=offset,
            sinusoidal=True,
            reaches_slowest=True,
        ),
    )
