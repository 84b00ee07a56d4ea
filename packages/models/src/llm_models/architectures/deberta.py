"""Owns the specs of DeBERTa 1 to 3: encoders whose scores tell content from position."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.bert import BERT_NAMES, encoder
from llm_models.architectures.common import head_size_of, layer_norm
from llm_models.architectures.encoder_parts import renamed_root, text_classifier, token_classifier
from llm_models.blocks.disentangled_attention import DisentangledAttention
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names, groups
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec

_COMMON = renamed_root(
    BERT_NAMES.but(
        top={
            "bert.encoder.rel_embeddings": "layers.{i}.attention.relative",
            "bert.encoder.LayerNorm": "layers.{i}.attention.relative_norm",
            "pooler.dense": "pooler",
        },
        without=(
            "bert.pooler.dense",
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ),
        harmless=(r"(lm_predictions|mask_predictions)\..*", r"lm_head\..*"),
    ),
    "bert.",
    "deberta.",
)
_NAMES = _COMMON.but(
    {
        "attention.self.query_proj": "attention.query",
        "attention.self.key_proj": "attention.key",
        "attention.self.value_proj": "attention.value",
        "attention.self.pos_key_proj": "attention.position_key",
        "attention.self.pos_query_proj": "attention.position_query",
    }
)


def _first_names(num_heads: int) -> Names:
    return _COMMON.but(
        {
            "attention.self.in_proj": groups(
                num_heads, "attention.query", "attention.key", "attention.value"
            ),
            "attention.self.q_bias": "attention.query.bias",
            "attention.self.v_bias": "attention.value.bias",
            "attention.self.pos_proj": "attention.position_key",
            "attention.self.pos_q_proj": "attention.position_query",
        }
    )


def _body(config: Mapping[str, Any], *, is_first: bool) -> DecoderSpec:
    config = {"layer_norm_eps": 1e-7, "type_vocab_size": 0, "pad_token_id": 0, **config}
    reader = ConfigReader(config)
    if not reader.boolean("relative_attention", False):
        raise UnsupportedConfig("relative_attention", "must be true")
    for field in ("talking_head", "conv_kernel_size"):
        reader.refuse(field, "is not supported")
    for field in ("embedding_size", "pooler_hidden_size"):
        if config.get(field) not in (None, config["hidden_size"]):
            raise UnsupportedConfig(field, "must be hidden_size")
    mixer = _mixer(config, is_first=is_first)
    names = _first_names(mixer.num_heads) if is_first else _NAMES
    types = reader.whole_number("type_vocab_size")
    body = encoder({**config, "type_vocab_size": types or 1}, names, mixer=mixer)
    embedding = replace(body.embedding, token_types=types)
    if not reader.boolean("position_biased_input", True):
        embedding = replace(embedding, positions=None)
    return replace(body, embedding=embedding)


def _mixer(config: Mapping[str, Any], *, is_first: bool) -> DisentangledAttention:
    reader = ConfigReader(config)
    stated = config.get("pos_att_type") or ()
    kinds = {kind.strip() for kind in (stated.split("|") if isinstance(stated, str) else stated)}
    if not kinds <= {"c2p", "p2c"} or not kinds:
        raise UnsupportedConfig("pos_att_type", f"{sorted(kinds)} must be of c2p and p2c")
    farthest, buckets = config.get("max_relative_positions"), config.get("position_buckets")
    is_bucketed = not is_first and isinstance(buckets, int) and buckets > 0
    norms = {part.strip() for part in str(config.get("norm_rel_ebd") or "none").lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise UnsupportedConfig("norm_rel_ebd", f"{config['norm_rel_ebd']!r} is neither none nor layer_norm")
    return DisentangledAttention(
        num_heads=reader.positive_int("num_attention_heads"),
        head_size=head_size_of(config),
        farthest=farthest
        if isinstance(farthest, int) and farthest > 0
        else reader.positive_int("max_position_embeddings"),
        buckets=buckets if is_bucketed else None,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        shares_projections=not is_first and reader.boolean("share_att_key", False),
        relative_norm=layer_norm(config) if "layer_norm" in norms and not is_first else None,
        key_bias=not is_first,
    )


def _classifier(config: Mapping[str, Any], *, is_first: bool) -> PooledSpec:
    activation = ConfigReader(config).activation("pooler_hidden_act", "gelu")
    return text_classifier(_body(config, is_first=is_first), config, dense="pooler", activation=activation)


@architecture("DebertaModel", "DebertaForMaskedLM")
def deberta(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa as an embedder."""
    return PooledSpec(body=_body(config, is_first=True), pooling="cls")


@architecture("DebertaForSequenceClassification")
def deberta_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa with a classifier over the first token."""
    return _classifier(config, is_first=True)


@architecture("DebertaForTokenClassification")
def deberta_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa with a classifier over each token."""
    return token_classifier(_body(config, is_first=True), config)


@architecture("DebertaV2Model", "DebertaV2ForMaskedLM")
def deberta2(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa 2 and 3 as embedders."""
    return PooledSpec(body=_body(config, is_first=False), pooling="cls")


@architecture("DebertaV2ForSequenceClassification")
def deberta2_classifier(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa 2 and 3 with a classifier over the first token."""
    return _classifier(config, is_first=False)


@architecture("DebertaV2ForTokenClassification")
def deberta2_tokens(config: Mapping[str, Any]) -> PooledSpec:
    """DeBERTa 2 and 3 with a classifier over each token."""
    return token_classifier(_body(config, is_first=False), config)
