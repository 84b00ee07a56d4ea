"""Owns the specs of DistilBERT, ELECTRA, ALBERT, MPNet and the RoBERTas with norms before the blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.bert import BERT_NAMES, encoder
from llm_models.architectures.common import layer_norm, renamed
from llm_models.architectures.encoder_parts import (
    both_sides,
    plain_mlp,
    renamed_root,
    text_classifier,
    token_classifier,
)
from llm_models.blocks.layer import pre_norm
from llm_models.blocks.relative_bias import RelativeBias
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names, transposed
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec

_ROBERTA_HEAD = {
    "classifier.dense": "dense",
    "classifier.out_proj": "classifier",
    "classifier": "classifier",
}

# DistilBERT

_DISTILBERT_NAMES = Names(
    top={
        "distilbert.embeddings.word_embeddings": "embedding",
        "distilbert.embeddings.position_embeddings": "positions",
        "distilbert.embeddings.LayerNorm": "embedding_norm",
        "pre_classifier": "dense",
        "classifier": "classifier",
    },
    layer="distilbert.transformer.layer.{i}",
    inside={
        "attention.q_lin": "attention.query",
        "attention.k_lin": "attention.key",
        "attention.v_lin": "attention.value",
        "attention.out_lin": "attention.output",
        "sa_layer_norm": "attention.after_norm",
        "ffn.lin1": "mlp.up",
        "ffn.lin2": "mlp.down",
        "output_layer_norm": "mlp.after_norm",
    },
    optional_prefix="distilbert.",
    harmless=(r"(.*\.)?embeddings\.position_ids", r"vocab_(transform|layer_norm|projector)\..*"),
)
_DISTILBERT_FIELDS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


def _distilbert(config: Mapping[str, Any]) -> DecoderSpec:
    body = encoder(
        {**renamed(config, _DISTILBERT_FIELDS), "layer_norm_eps": 1e-12, "type_vocab_size": 1},
        _DISTILBERT_NAMES,
    )
    return replace(body, embedding=replace(body.embedding, token_types=0))


@architecture("DistilBertModel", "DistilBertForMaskedLM")
def distilbert(config: Mapping[str, Any]) -> PooledSpec:
    """DistilBERT as an embedder."""
    return PooledSpec(body=_distilbert(config), pooling="cls")


@architecture("DistilBertForSequenceClassification")
def distilbert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """DistilBERT with a classifier over the first token."""
    return text_classifier(_distilbert(config), config, activation="relu")


@architecture("DistilBertForTokenClassification")
def distilbert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """DistilBERT with a classifier over each token."""
    return token_classifier(_distilbert(config), config)


# ELECTRA


def _electra(config: Mapping[str, Any]) -> DecoderSpec:
    names = renamed_root(
        BERT_NAMES,
        "bert.",
        "electra.",
        **{"electra.embeddings_project": "embedding_projection"},
        **_ROBERTA_HEAD,
    )
    heads = r"(generator_predictions|generator_lm_head|discriminator_predictions)\..*"
    body = encoder(config, replace(names, harmless=(*names.harmless, heads)))
    size = ConfigReader(config).positive_int("embedding_size", 128)
    return replace(body, embedding=replace(body.embedding, size=size, projection_bias=True))


@architecture("ElectraModel", "ElectraForPreTraining", "ElectraForMaskedLM")
def electra(config: Mapping[str, Any]) -> PooledSpec:
    """ELECTRA as an embedder: BERT with a narrower embedding."""
    return PooledSpec(body=_electra(config), pooling="cls")


@architecture("ElectraForSequenceClassification")
def electra_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """ELECTRA with a classifier over the first token."""
    return text_classifier(_electra(config), config, activation="gelu")


@architecture("ElectraForTokenClassification")
def electra_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """ELECTRA with a classifier over each token."""
    return token_classifier(_electra(config), config)


# ALBERT

_ALBERT_NAMES = Names(
    top={
        "albert.embeddings.word_embeddings": "embedding",
        "albert.embeddings.position_embeddings": "positions",
        "albert.embeddings.token_type_embeddings": "token_types",
        "albert.embeddings.LayerNorm": "embedding_norm",
        "albert.encoder.embedding_hidden_mapping_in": "embedding_projection",
        "albert.pooler": "pooler",
        "classifier": "classifier",
    },
    # Without a number: every layer is the same.
    layer="albert.encoder.albert_layer_groups.0.albert_layers.0",
    inside={
        "attention.query": "attention.query",
        "attention.key": "attention.key",
        "attention.value": "attention.value",
        "attention.dense": "attention.output",
        "attention.LayerNorm": "attention.after_norm",
        "ffn": "mlp.up",
        "ffn_output": "mlp.down",
        "full_layer_layer_norm": "mlp.after_norm",
    },
    optional_prefix="albert.",
    harmless=(
        r"(.*\.)?embeddings\.position_ids",
        r"(predictions|sop_classifier)\..*",
        r"(albert\.)?pooler\..*",
    ),
)


def _albert(config: Mapping[str, Any]) -> DecoderSpec:
    reader = ConfigReader(config)
    for field in ("num_hidden_groups", "inner_group_num"):
        if reader.positive_int(field, 1) != 1:
            raise UnsupportedConfig(field, "only one layer that all share is supported")
    body = encoder({"hidden_act": "gelu_new", **config}, _ALBERT_NAMES)
    size = reader.positive_int("embedding_size", 128)
    if size == body.hidden_size:
        raise UnsupportedConfig("embedding_size", "must differ from hidden_size")
    return replace(body, embedding=replace(body.embedding, size=size, projection_bias=True))


@architecture("AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining")
def albert(config: Mapping[str, Any]) -> PooledSpec:
    """ALBERT as an embedder: BERT whose layers share their weights."""
    return PooledSpec(body=_albert(config), pooling="cls")


@architecture("AlbertForSequenceClassification")
def albert_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """ALBERT with a classifier over the first token."""
    return text_classifier(_albert(config), config, dense="pooler")


@architecture("AlbertForTokenClassification")
def albert_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """ALBERT with a classifier over each token."""
    return token_classifier(_albert(config), config)


# MPNet

_MPNET_BUCKETS, _MPNET_DISTANCE = 32, 128
_MPNET_NAMES = Names(
    top={
        "mpnet.embeddings.word_embeddings": "embedding",
        "mpnet.embeddings.position_embeddings": "positions",
        "mpnet.embeddings.LayerNorm": "embedding_norm",
        "mpnet.encoder.relative_attention_bias": transposed("layers.{i}.attention.relative_bias"),
        **_ROBERTA_HEAD,
    },
    layer="mpnet.encoder.layer.{i}",
    inside={
        "attention.attn.q": "attention.query",
        "attention.attn.k": "attention.key",
        "attention.attn.v": "attention.value",
        "attention.attn.o": "attention.output",
        "attention.LayerNorm": "attention.after_norm",
        "intermediate.dense": "mlp.up",
        "output.dense": "mlp.down",
        "output.LayerNorm": "mlp.after_norm",
    },
    optional_prefix="mpnet.",
    harmless=(r"(.*\.)?embeddings\.position_ids", r"lm_head\..*", r"(mpnet\.)?pooler\..*"),
)


def _mpnet(config: Mapping[str, Any]) -> DecoderSpec:
    if ConfigReader(config).positive_int("relative_attention_num_buckets", 32) != _MPNET_BUCKETS:
        raise UnsupportedConfig("relative_attention_num_buckets", f"must be {_MPNET_BUCKETS}")
    bias = RelativeBias(num_buckets=_MPNET_BUCKETS, max_distance=_MPNET_DISTANCE)
    mixer = replace(both_sides(config), relative_bias=bias)
    # Positions start after the row of padding, which is row 1 whatever the config says.
    body = encoder({**config, "type_vocab_size": 1}, _MPNET_NAMES, first_position=2, mixer=mixer)
    return replace(body, embedding=replace(body.embedding, token_types=0))


@architecture("MPNetModel", "MPNetForMaskedLM")
def mpnet(config: Mapping[str, Any]) -> PooledSpec:
    """MPNet as an embedder: RoBERTa with biases by distance."""
    return PooledSpec(body=_mpnet(config), pooling="cls")


@architecture("MPNetForSequenceClassification")
def mpnet_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """MPNet with a classifier over the first token."""
    return text_classifier(_mpnet(config), config)


@architecture("MPNetForTokenClassification")
def mpnet_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """MPNet with a classifier over each token."""
    return token_classifier(_mpnet(config), config)


# RoBERTas with norms before the blocks

_PRE_NORM_NAMES = BERT_NAMES.but(
    {"attention.LayerNorm": "attention.norm", "intermediate.LayerNorm": "mlp.norm"},
    top={"bert.LayerNorm": "final_norm"},
    without=("attention.output.LayerNorm", "output.LayerNorm", "bert.pooler.dense"),
    harmless=(r"lm_head\..*",),
)
_XL_NAMES = BERT_NAMES.but(
    {"attention.self_attn_layer_norm": "attention.norm", "LayerNorm": "mlp.norm"},
    top={"bert.encoder.LayerNorm": "final_norm"},
    without=("attention.output.LayerNorm", "output.LayerNorm", "bert.pooler.dense"),
    harmless=(r"lm_head\..*",),
)


def _pre_norm(config: Mapping[str, Any], names: Names, root: str, *, default_eps: float) -> DecoderSpec:
    config = {"layer_norm_eps": default_eps, **config}
    reader, norm = ConfigReader(config), layer_norm(config)
    body = encoder(
        config,
        renamed_root(names, "bert.", root, **_ROBERTA_HEAD),
        first_position=reader.whole_number("pad_token_id", 1) + 1,
    )
    layer = pre_norm(both_sides(config), plain_mlp(config), norm)
    return replace(body, layers=(layer,) * reader.positive_int("num_hidden_layers"), final_norm=norm)


def _roberta_pre_norm(config: Mapping[str, Any]) -> DecoderSpec:
    return _pre_norm(config, _PRE_NORM_NAMES, "roberta_prelayernorm.", default_eps=1e-12)


def _roberta_xl(config: Mapping[str, Any]) -> DecoderSpec:
    body = _pre_norm(config, _XL_NAMES, "roberta.", default_eps=1e-5)
    return replace(body, embedding=replace(body.embedding, norm=None))


@architecture("RobertaPreLayerNormModel", "RobertaPreLayerNormForMaskedLM")
def roberta_pre_norm(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa-PreLayerNorm as an embedder."""
    return PooledSpec(body=_roberta_pre_norm(config), pooling="cls")


@architecture("RobertaPreLayerNormForSequenceClassification")
def roberta_pre_norm_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa-PreLayerNorm with a classifier over the first token."""
    return text_classifier(_roberta_pre_norm(config), config)


@architecture("RobertaPreLayerNormForTokenClassification")
def roberta_pre_norm_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """RoBERTa-PreLayerNorm with a classifier over each token."""
    return token_classifier(_roberta_pre_norm(config), config)


@architecture("XLMRobertaXLModel", "XLMRobertaXLForMaskedLM")
def roberta_xl(config: Mapping[str, Any]) -> PooledSpec:
    """XLM-RoBERTa-XL as an embedder."""
    return PooledSpec(body=_roberta_xl(config), pooling="cls")


@architecture("XLMRobertaXLForSequenceClassification")
def roberta_xl_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """XLM-RoBERTa-XL with a classifier over the first token."""
    return text_classifier(_roberta_xl(config), config)


@architecture("XLMRobertaXLForTokenClassification")
def roberta_xl_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """XLM-RoBERTa-XL with a classifier over each token."""
    return token_classifier(_roberta_xl(config), config)
