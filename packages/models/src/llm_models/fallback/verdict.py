"""Owns the answer to how transformers would serve a config; knows nothing about weights or running it."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llm_models.config import architecture_name
from llm_models.errors import ConfigError
from llm_models.fallback.quirks import NEEDS_RECOMPUTE, NOT_ALONE, several_streams
from llm_models.fallback.transformers_classes import (
    causal_class,
    installed,
    native_config,
    remote_name,
    uses_attention_interface,
)

VerdictKind = Literal["paged", "recompute", "unsupported"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the fallback serves an architecture.

    Attributes:
        kind: `paged`: transformers' module over our paged attention. `recompute`: the whole sequence is run
            again in each step, which is right but slow. `unsupported`: not at all.
        reason: Why, in one line.
    """

    kind: VerdictKind
    reason: str


def fallback_verdict(config: Mapping[str, Any], *, trust_remote_code: bool = False) -> Verdict:
    """Says, from the config alone, how the transformers fallback would serve it.

    `paged` is what inspection of the class promises. Loading compares it with the plain module, and takes
    `recompute` if they differ.
    """
    if not installed():
        return Verdict(
            "unsupported", "transformers is not installed: pip install 'llm-stack-models[fallback]'"
        )
    try:
        name = architecture_name(config)
    except ConfigError as error:
        return Verdict("unsupported", str(error))
    if config.get("quantization_config"):
        return Verdict("unsupported", "the checkpoint is quantized (quantization_config)")
    if remote_name(config) is not None and causal_class(name) is None:
        if not trust_remote_code:
            return Verdict("unsupported", "its code is in the checkpoint: needs trust_remote_code=True")
        return Verdict(
            "recompute", "its code is in the checkpoint; whether it can be paged shows when it is loaded"
        )
    return _of_class(name, config)


def _of_class(name: str, config: Mapping[str, Any]) -> Verdict:
    found = causal_class(name)
    if found is None:
        return Verdict("unsupported", f"{name} is none of transformers' classes for causal language models")
    if name in NOT_ALONE:
        return Verdict("unsupported", NOT_ALONE[name])
    try:
        parsed = native_config(config)
    except Exception as error:  # noqa: BLE001 A config class may raise anything.
        return Verdict("unsupported", f"transformers refuses the config: {_line(error)}")
    if getattr(parsed, "is_decoder", True) is False and "is_decoder" in inspect.getsource(found.__init__):
        return Verdict(
            "unsupported", "is_decoder is false in the config, so that every token sees the later ones"
        )
    if (streams := several_streams(parsed)) is not None:
        return Verdict("unsupported", streams)
    if name in NEEDS_RECOMPUTE:
        return Verdict("recompute", NEEDS_RECOMPUTE[name])
    return verdict_of_class(found)


def verdict_of_class(found: type) -> Verdict:
    """How a class is served as far as its flags say; `paged` or `recompute`."""
    if getattr(found, "_is_stateful", False):
        return Verdict("recompute", "it carries a state besides keys and values")
    if not uses_attention_interface(found):
        return Verdict("recompute", "its attention does not go through transformers' attention interface")
    return Verdict("paged", "its attention goes through transformers' attention interface")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
