"""The seam between the engine and libraries that enforce grammars; knows nothing of either side.

A back end belongs to one vocabulary. `prepare` and `compile` may be called from several threads at once; a
matcher belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llm_engine.grammar.spec import GrammarSpec


class InvalidGrammar(ValueError):
    """The text is no grammar of its kind, holds a keyword that cannot be enforced, or costs too much."""


class TokenMatcher(Protocol):
    """Follows one output through a compiled grammar."""

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on, such as a step that costs too much; None where it can."""
        ...

    def accept(self, token_id: int) -> None:
        """Take a token that the output gained; none that ends it."""
        ...


class CompiledGrammar(Protocol):
    """A grammar that is ready to be followed, by any number of outputs."""

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes; 0 where the library does not tell."""
        ...

    def start(self) -> TokenMatcher:
        """A matcher at the beginning."""
        ...


class GrammarBackend(Protocol):
    """A library that compiles grammars over the tokens of a vocabulary."""

    def prepare(self) -> None:
        """Make what does not depend on a grammar, such as a table of the vocabulary; `compile` does too."""
        ...

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a spec, whatever its `after` and `backend` say.

        Raises:
            InvalidGrammar: It cannot be enforced; the message names what is at fault.
        """
        ...

    def fill(self, matchers: Sequence[Any], bits: NDArray[np.int32]) -> None:
        """Write which tokens each output may take next.

        Args:
            matchers: Of this back end.
            bits: int32[matchers, words], contiguous; bit i of word w stands for the token 32 w + i.
        """
        ...
