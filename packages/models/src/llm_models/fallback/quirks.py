"""Owns what inspection of transformers' classes does not show, found by comparing each with its plain run."""

from collections.abc import Mapping
from types import MappingProxyType

NOT_TEXT: Mapping[str, str] = MappingProxyType({})
"""Classes that take or give something else than one sequence of token ids, and what."""

NEEDS_RECOMPUTE: Mapping[str, str] = MappingProxyType({})
"""Classes of the attention interface whose paged run cannot be right, and why."""
