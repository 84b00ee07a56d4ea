"""Owns the specs of BERT and RoBERTa: encoders with learned positions and norms after the sums."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import decoder, layer_norm
from llm_models.architectures.encoder_parts import (
    both_sides,
    plain_mlp,
    post_norm,
    text_classifier,
    token_classifier,
)
from llm_models.blocks.layer import BlockSpec
from llm_models.config import ConfigReader
from llm_models.names import Names
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec, Embedding, LearnedPositions

BERT_NAMES = Names(
    top={
        "bert.embeddings.word_embeddings": "embedding",
        "bert.embeddings.position_embeddings": "positions",
        "bert.embeddings.token_type_embeddings": "token_types",
        "bert.embeddings.LayerNorm": "embedding_norm",
        "bert.pooler.dense": "pooler",
        "classifier": "classifier",
    },
    layer="bert.encoder.layer.{i}",
    inside={
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.output",
        "attention.output.LayerNorm": "attention.after_norm",
        "intermediate.dense": "mlp.up",
        "output.dense": "mlp.down",
        "output.LayerNorm": "mlp.after_norm",
    },
    optional_prefix="bert.",
    harmless=(r"(.*\.)?embeddings\.position_ids", r"cls\..*", r"(bert\.)?pooler\..*"),
)
"""The names of BERT, which its relatives share below another prefix."""


def encoder(
    config: Mapping[str, Any], names: Names, *, first_position: int = 0, mixer: BlockSpec | None = None
) -> DecoderSpec:
    """Reads a BERT-like body.

    Args:
        config: The model config.
        names: Of the checkpoint.
        first_position: The row of position 0 in the table of positions.
        mixer: Instead of plain attention.
    """
    config = {"layer_norm_eps": 1e-12, **config}
    reader, norm = ConfigReader(config), layer_norm(config)
    kind = reader.string("position_embedding_type", "absolute")
    if kind != "absolute":
        reader.refuse("position_embedding_type", f"{kind!r} is not supported")
    reader.refuse("is_decoder", "as a decoder this class goes through the fallback")
    count = reader.positive_int("max_position_embeddings")
    layer = post_norm(mixer or both_sides(config), plain_mlp(config), norm)
    return decoder(
        {**config, "tie_word_embeddings": True},
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=None,
        names=names,
        embedding=Embedding(
            vocab_size=reader.positive_int("vocab_size"),
            positions=LearnedPositions(count=count, offset=first_position),
            token_types=reader.positive_int("type_vocab_size", 2),
            norm=norm,
        ),
        max_positions=count - first_position,
    )


@architecture("BertModel", "BertForMaskedLM")
def bert(config: Mapping[str, Any]) -> PooledSpec:
    """BERT as an embedder: the first token's state, unless the folder says otherwise."""
    return PooledSpec(body=encoder(config, BERT_NAMES), pooling="cls")


@architecture("BertForSequenceClassification")
def bert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """BERT with a classifier over the first token (cross-encoders too)."""
    return text_classifier(encoder(config, BERT_NAMES), config, dense="pooler")


@architecture("BertForTokenClassification")
def bert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """BERT with a classifier over each token."""
    return token_classifier(encoder(config, BERT_NAMES), config)


def _roberta_body(config: Mapping[str, Any]) -> DecoderSpec:
    names = replace(
        BERT_NAMES,
        top={
            name.replace("bert.", "roberta.", 1): target
            for name, target in BERT_NAMES.top.items()
            if name not in ("classifier", "bert.pooler.dense")
        }
        | {
            "classifier.dense": "dense",
            "classifier.out_proj": "classifier",
            "classifier": "classifier",
        },
        layer="roberta.encoder.layer.{i}",
        optional_prefix="roberta.",
        harmless=(r"(.*\.)?embeddings\.position_ids", r"lm_head\..*", r"(roberta\.)?pooler\..*"),
    )
    # Positions start after the padding's row.
    return encoder(config, names, first_position=ConfigReader(config).whole_number("pad_token_id", 1) + 1)


@architecture(
    "RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM", "CamembertModel"
)
def roberta(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa, XLM-RoBERTa and CamemBERT as embedders."""
    return PooledSpec(body=_roberta_body(config), pooling="cls")


@architecture(
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "CamembertForSequenceClassification",
)
def roberta_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa with a classifier over the first token."""
    return text_classifier(_roberta_body(config), config)


@architecture(
    "RobertaForTokenClassification",
    "XLMRobertaForTokenClassification",
    "CamembertForTokenClassification",
)
def roberta_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa with a classifier over each token."""
    return token_classifier(_roberta_body(config), config)
