"""Owns making embedders and classifiers out of decoders; knows nothing about any family."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.config import ConfigReader
from llm_models.pooling import Dense, PooledSpec
from llm_models.spec import DecoderSpec, Head

CLASSIFIER_SUFFIXES = ("ForSequenceClassification", "ForTokenClassification")
"""Endings of the classes that put a head called `score` on a decoder."""


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`id2label` in order of ids, else as many names as `num_labels` (2 when neither is there)."""
    named = config.get("id2label")
    if isinstance(named, Mapping):
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = ConfigReader(config).positive_int("num_labels", 2)
    return tuple(f"LABEL_{index}" for index in range(count))


def embedder(spec: DecoderSpec) -> PooledSpec:
    """A decoder whose last token's state is the text's vector, unless the folder says otherwise."""
    return PooledSpec(body=_body(spec, {}), pooling="last", normalize=True)


def classifier(spec: DecoderSpec, config: Mapping[str, Any], *, over_tokens: bool) -> PooledSpec:
    """A decoder with scores for the text, read at its last token, or for each token."""
    labels = labels_of(config)
    return PooledSpec(
        body=_body(spec, {"score": "score"}),
        pooling="token" if over_tokens else "last",
        head=(Dense(name="score", size=len(labels), bias=over_tokens),),
        labels=labels,
    )


def _body(spec: DecoderSpec, names: Mapping[str, str]) -> DecoderSpec:
    # The head is not used: tied, it has no parameters.
    return replace(spec, head=Head(tied=True), names=spec.names.but(top=names))
