"""Owns what configs and names of encoders have in common, as parts of specs; knows about no family."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.activations import Activation
from llm_models.architectures.common import head_size_of
from llm_models.architectures.pooled_decoders import labels_of
from llm_models.blocks.attention import Attention
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.names import Names, Target
from llm_models.pooling import Dense, PooledSpec, PoolingKind
from llm_models.rope import Rope
from llm_models.spec import DecoderSpec, Embedding


def both_sides(
    config: Mapping[str, Any], *, bias: bool = True, rope: Rope | None = None, head_size: int | None = None
) -> Attention:
    """Attention to both sides, with as many key heads as query heads."""
    size = head_size or head_size_of(config)
    heads = ConfigReader(config).positive_int("num_attention_heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        scale=size**-0.5,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        causal=False,
    )


def plain_mlp(config: Mapping[str, Any], default: str = "gelu") -> MLP:
    """A feed-forward without a gate, with biases."""
    reader = ConfigReader(config)
    return MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("hidden_act", default),
        gated=False,
        bias=True,
    )


def post_norm(mixer: BlockSpec, feed_forward: BlockSpec, norm: Norm) -> Layer:
    """A norm after each sum."""
    return Layer((Branch(blocks=(mixer,), after=norm), Branch(blocks=(feed_forward,), after=norm)))


def text_embedding(config: Mapping[str, Any], norm: Norm | None, *, types: int = 0) -> Embedding:
    """Tokens and their types; `types` where the config does not say how many."""
    reader = ConfigReader(config)
    return Embedding(
        vocab_size=reader.positive_int("vocab_size"),
        token_types=reader.whole_number("type_vocab_size", types),
        norm=norm,
    )


def renamed_root(names: Names, old: str, new: str, **top: Target) -> Names:
    """The names below another first part, with further ones at the top."""
    moved = {
        name.replace(old, new, 1) if name.startswith(old) else name: to for name, to in names.top.items()
    }
    return replace(
        names,
        top={**moved, **top},
        layer=names.layer.replace(old, new, 1),
        optional_prefix=new,
        harmless=(*names.harmless, rf"({new[:-1]}\.)?pooler\..*"),
    )


def text_classifier(
    body: DecoderSpec,
    config: Mapping[str, Any],
    *,
    dense: str = "dense",
    activation: Activation = "tanh",
    pooling: PoolingKind = "cls",
) -> PooledSpec:
    """A dense layer and a classifier over the text."""
    labels = labels_of(config)
    head = (
        Dense(name=dense, size=body.hidden_size, activation=activation),
        Dense(name="classifier", size=len(labels)),
    )
    return PooledSpec(body=body, pooling=pooling, head=head, labels=labels)


def token_classifier(body: DecoderSpec, config: Mapping[str, Any]) -> PooledSpec:
    """A classifier over each token."""
    labels = labels_of(config)
    return PooledSpec(
        body=body, pooling="token", head=(Dense(name="classifier", size=len(labels)),), labels=labels
    )
