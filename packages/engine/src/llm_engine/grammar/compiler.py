"""Compiles grammars with the back end that each asks for, and remembers them; knows nothing of requests.

One compiler belongs to one tokenizer. Its methods are safe to call from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from llm_tokenizer import Tokenizer
from numpy.typing import NDArray

from llm_engine.grammar.backend import CompiledGrammar, GrammarBackend, InvalidGrammar, TokenMatcher
from llm_engine.grammar.llguidance_backend import LlguidanceBackend
from llm_engine.grammar.spec import BACKENDS, MAX_CHARS, GrammarSpec
from llm_engine.grammar.vocabulary import Vocabulary
from llm_engine.grammar.xgrammar_backend import XgrammarBackend

_MAX_COMPILED = 256
_MAX_COMPILED_BYTES = 512 << 20

_BACKENDS: Mapping[str, Callable[[Vocabulary], GrammarBackend]] = {
    "llguidance": LlguidanceBackend,
    "xgrammar": XgrammarBackend,
}


class Matcher:
    """Follows one output: through its free text first, where it has some, then through its grammar.

    Args:
        inner: At the beginning of the grammar.
        backend: Of `inner`.
        vocabulary: The compiler's.
        free: The free text; None: there is none.
        opening: The token that must come first for there to be free text; None: it begins as it is.
    """

    def __init__(
        self,
        inner: TokenMatcher,
        backend: GrammarBackend,
        vocabulary: Vocabulary,
        free: _FreeText | None,
        opening: int | None,
    ) -> None:
        self.inner = inner
        self.backend = backend
        self.opening = opening
        self._eos_token_ids = vocabulary.eos_token_ids
        self._num_words = vocabulary.num_words
        self._free = free

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return self._num_words

    @property
    def is_free(self) -> bool:
        """Whether anything may come next."""
        return self._free is not None and self.opening is None

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on, such as a step that costs too much; None where it can."""
        return self.inner.fault

    def accept(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that the output gained."""
        for token_id in token_ids:
            if self.opening is not None:
                opened, self.opening = token_id == self.opening, None
                if opened:
                    continue
                self._free = None
            if self._free is not None:
                if self._free.ends_with(token_id):
                    self._free = None
            elif token_id not in self._eos_token_ids:
                self.inner.accept(token_id)

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Write which tokens may come next: int32[words], bit i of word w for the token 32 w + i."""
        fill_masks([self], bits[None, :])


def fill_masks(matchers: Sequence[Matcher], bits: NDArray[np.int32]) -> None:
    """Write which tokens each of some outputs may take next, one call a back end.

    Args:
        matchers: Of one compiler.
        bits: int32[matchers, words], contiguous.
    """
    places: dict[int, list[int]] = {}
    for place, matcher in enumerate(matchers):
        if matcher.is_free:
            bits[place] = -1
        else:
            places.setdefault(id(matcher.backend), []).append(place)
    for mine in places.values():
        chosen = [matchers[place] for place in mine]
        inner, backend = [one.inner for one in chosen], chosen[0].backend
        if len(mine) == len(matchers):
            backend.fill(inner, bits)
            continue
        apart = np.zeros((len(mine), bits.shape[1]), np.int32)
        backend.fill(inner, apart)
        bits[mine] = apart
    for row, matcher in zip(bits, matchers, strict=True):
        if matcher.opening is not None:
            row[matcher.opening // 32] |= np.int32(np.uint32(1 << matcher.opening % 32).view(np.int32))


class Grammar:
    """A compiled grammar; each output has a matcher of its own."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        backend: GrammarBackend,
        vocabulary: Vocabulary,
        after: str,
        opens: str,
    ) -> None:
        self._compiled = compiled
        self._backend = backend
        self._vocabulary = vocabulary
        self._after = after.encode()
        self._opens = vocabulary.single_token(opens) if opens else None
        self._begins_free = bool(after) and (not opens or self._opens is not None)

    def start(self, token_ids: Sequence[int] = ()) -> Matcher:
        """A matcher of an output that begins with ``token_ids``."""
        free = _FreeText(self._vocabulary, self._after) if self._begins_free else None
        matcher = Matcher(self._compiled.start(), self._backend, self._vocabulary, free, self._opens)
        matcher.accept(token_ids)
        return matcher


class GrammarCompiler:
    """Compiles grammars over one tokenizer's tokens.

    Args:
        tokenizer: The model's.
        eos_token_ids: The tokens that end an output; allowed where the grammar is complete.
        default_backend: For specs that name none.
    """

    def __init__(
        self, tokenizer: Tokenizer, eos_token_ids: Iterable[int], default_backend: str = BACKENDS[0]
    ) -> None:
        self._vocabulary = Vocabulary(tokenizer, eos_token_ids)
        self._default_backend = default_backend
        self._lock = threading.Lock()
        self._backends: dict[str, GrammarBackend] = {}
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return self._vocabulary.num_words

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an output."""
        return self._vocabulary.eos_token_ids

    def prepare(self) -> None:
        """Make what the default back end needs before its first grammar: a table of the vocabulary."""
        self._backend(self._default_backend).prepare()

    def find(self, spec: GrammarSpec) -> Grammar | None:
        """The grammar of a spec, if it is remembered."""
        key = self._key(spec)
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                return None
            self._compiled.move_to_end(key)
        return Grammar(compiled, self._backend(key.backend), self._vocabulary, spec.after, spec.opens)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of a spec.

        Raises:
            InvalidGrammar: It cannot be compiled; the message names what is at fault.
        """
        found = self.find(spec)
        if found is not None:
            return found
        if len(spec.text) > MAX_CHARS:
            raise InvalidGrammar(f"longer than {MAX_CHARS} characters")
        key = self._key(spec)
        backend = self._backend(key.backend)
        compiled = backend.compile(key)
        self._remember(key, compiled)
        return Grammar(compiled, backend, self._vocabulary, spec.after, spec.opens)

    def _key(self, spec: GrammarSpec) -> GrammarSpec:
        """What of a spec its compiled grammar depends on."""
        return msgspec.structs.replace(
            spec, after="", opens="", backend=spec.backend or self._default_backend
        )

    def _backend(self, name: str) -> GrammarBackend:
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                make = _BACKENDS.get(name)
                if make is None:
                    known = ", ".join(BACKENDS)
                    raise InvalidGrammar(f"the back end must be one of {known}, got {name[:40]!r}")
                backend = self._backends[name] = make(self._vocabulary)
            return backend

    def _remember(self, key: GrammarSpec, compiled: CompiledGrammar) -> None:
        """Keeps a grammar, and drops those that were not used for the longest time."""
        with self._lock:
            before = self._compiled.pop(key, None)
            self._num_bytes -= 0 if before is None else before.num_bytes
            self._compiled[key] = compiled
            self._num_bytes += compiled.num_bytes
            while len(self._compiled) > _MAX_COMPILED or (
                self._num_bytes > _MAX_COMPILED_BYTES and len(self._compiled) > 1
            ):
                _, dropped = self._compiled.popitem(last=False)
                self._num_bytes -= dropped.num_bytes


class _FreeText:
    """The part of an output before its grammar begins."""

    def __init__(self, vocabulary: Vocabulary, mark: bytes) -> None:
        self._vocabulary = vocabulary
        self._mark = mark
        self._tail = b""

    def ends_with(self, token_id: int) -> bool:
        """Take a token; whether the mark is complete with it."""
        self._tail += self._vocabulary.token_bytes(token_id)
        if self._mark in self._tail:
            return True
        self._tail = self._tail[-len(self._mark) :]
        return False
