"""Owns the list of architectures and how each is served; knows nothing about weights."""

import inspect
from dataclasses import dataclass
from typing import Literal

from llm_models.fallback.quirks import NEEDS_RECOMPUTE, NOT_ALONE
from llm_models.fallback.transformers_classes import causal_class, causal_class_names, installed
from llm_models.fallback.verdict import Verdict, verdict_of_class
from llm_models.registry import registered

Standing = Literal["native", "paged", "recompute", "unsupported"]
_KINDS = {"DecoderSpec": "decoder", "PooledSpec": "pooling", "EncoderDecoderSpec": "encoder-decoder"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One architecture.

    Attributes:
        architecture: Its name in Hugging Face configs.
        kind: `decoder`, `pooling` or `encoder-decoder`; `plugin` where only loading it would tell.
        standing: `native`: it has a spec here. `paged`, `recompute`: the transformers fallback serves it,
            over our paged attention or by running the whole sequence again in each step. `unsupported`: it
            is not served.
        reason: Why, for all but native ones.
    """

    architecture: str
    kind: str
    standing: Standing
    reason: str = ""


def catalog() -> tuple[CatalogEntry, ...]:
    """Every native architecture, and every class of transformers' causal-LM mapping that is not; by name.

    The fallback's standing is what inspection of the class promises; loading compares and may take another.
    """
    entries = {
        name: CatalogEntry(architecture=name, kind=_kind(builder), standing="native")
        for name, builder in registered().items()
    }
    if installed():
        for name in causal_class_names() - entries.keys():
            verdict = _verdict(name)
            entries[name] = CatalogEntry(
                architecture=name, kind="decoder", standing=verdict.kind, reason=verdict.reason
            )
    return tuple(entries[name] for name in sorted(entries))


def kind_of(architecture: str) -> str:
    """The kind of a native architecture, classifiers and embedders over decoders included."""
    return _kind(registered()[architecture]) if architecture in registered() else "pooling"


def _kind(builder: object) -> str:
    if builder is None:
        return "plugin"
    returned = inspect.signature(builder.build).return_annotation  # type: ignore[attr-defined]
    return _KINDS.get(getattr(returned, "__name__", str(returned)), "decoder")


def _verdict(name: str) -> Verdict:
    if name in NOT_ALONE:
        return Verdict("unsupported", NOT_ALONE[name])
    if name in NEEDS_RECOMPUTE:
        return Verdict("recompute", NEEDS_RECOMPUTE[name])
    found = causal_class(name)
    if found is None:
        return Verdict("unsupported", "this release of transformers does not have the class")
    return verdict_of_class(found)
