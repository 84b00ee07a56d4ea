"""Enforces grammars with xgrammar, an optional library: its calls and its matchers; knows no other library.

It passes over keywords of JSON schemas that it cannot enforce: `xgrammar_schemas` refuses them before.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.date_formats import with_exact_formats
from llm_engine.grammar.schema_limits import (
    MAX_WHITE_SPACE,
    checked_choices,
    checked_schema,
    one_line,
    parsed,
)
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.grammar.structural_tags import parse_structural_tag
from llm_engine.grammar.tags_to_xgrammar import to_xgrammar
from llm_engine.grammar.vocabulary import Vocabulary
from llm_engine.grammar.xgrammar_schemas import as_any_of, check_keywords

XGRAMMAR_MISSING = "the back end xgrammar is not installed: pip install llm-stack-engine[xgrammar]"
_PARALLEL_FROM = 4
_MAX_THREADS = 8


def has_xgrammar() -> bool:
    """Whether the library is installed; it is not imported for that."""
    return importlib.util.find_spec("xgrammar") is not None


def import_what_is_shared() -> None:
    """Import, in the calling thread, what both our kernels and the library load.

    Two threads that import it at the same time make one of them fail.
    """
    if has_xgrammar():
        importlib.import_module("tvm_ffi")


class XgrammarMatcher:
    """See `TokenMatcher`."""

    __slots__ = ("_fault", "matcher")

    def __init__(self, matcher: Any) -> None:  # noqa: ANN401 -- the library may be absent
        self.matcher = matcher
        self._fault: str | None = None

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on."""
        return self._fault

    def accept(self, token_id: int) -> None:
        """Take a token."""
        if not self.matcher.accept_token(token_id):
            self._fault = f"token {token_id} does not follow the grammar"


class _Compiled:
    def __init__(self, library: Any, compiled: Any) -> None:  # noqa: ANN401
        self._library, self._compiled = library, compiled
        self.num_bytes = int(compiled.memory_size_bytes)

    def start(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._library.GrammarMatcher(self._compiled))


class XgrammarBackend:
    """See `GrammarBackend`.

    Raises:
        InvalidGrammar: The library is not installed.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not has_xgrammar():
            raise InvalidGrammar(XGRAMMAR_MISSING)
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._library: Any = None
        self._compiler: Any = None
        self._batch: Any = None

    def prepare(self) -> None:
        """Import the library and make its table of the vocabulary."""
        with self._lock:
            if self._compiler is not None:
                return
            self._library = importlib.import_module("xgrammar")
            special = self._vocabulary.special_token_ids
            # It takes tokens without bytes for marks, which no grammar allows.
            texts = [
                b"" if token_id in special else text
                for token_id, text in enumerate(self._vocabulary.all_bytes())
            ]
            info = self._library.TokenizerInfo(
                texts,
                self._library.VocabType.RAW,
                vocab_size=self._vocabulary.size,
                stop_token_ids=sorted(self._vocabulary.eos_token_ids),
            )
            # Grammars are remembered by our own compiler; one thread leaves the others to the model.
            self._compiler = self._library.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> _Compiled:
        """See `GrammarBackend.compile`."""
        self.prepare()
        try:
            return _Compiled(self._library, self._compiled(spec))
        except InvalidGrammar:
            raise
        except Exception as error:  # noqa: BLE001 -- the library raises plain exceptions of several kinds
            raise InvalidGrammar(_without_place(str(error))) from None

    def fill(self, matchers: Sequence[XgrammarMatcher], bits: NDArray[np.int32]) -> None:
        """See `GrammarBackend.fill`."""
        if len(matchers) < _PARALLEL_FROM:
            for place, one in enumerate(matchers):
                one.matcher.fill_next_token_bitmask(bits, place)
            return
        if self._batch is None:
            threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2))
            self._batch = self._library.BatchGrammarMatcher(max_threads=threads)
        self._batch.batch_fill_next_token_bitmask([one.matcher for one in matchers], bits)

    def _compiled(self, spec: GrammarSpec) -> Any:  # noqa: ANN401
        match spec.kind:
            case "json_object":
                return self._json_schema({"type": "object"})
            case "json_schema":
                return self._json_schema(checked_schema(parsed(spec.text)))
            case "regex":
                return self._compiler.compile_regex(spec.text)
            case "choice":
                texts = [json.dumps(choice, ensure_ascii=False) for choice in checked_choices(spec.text)]
                return self._compiler.compile_grammar("root ::= " + " | ".join(texts))
            case "grammar":
                if "::=" in spec.text:
                    return self._compiler.compile_grammar(spec.text)
                return self._compiler.compile_lark(spec.text)
            case "structural_tag":
                node = parse_structural_tag(parsed(spec.text))
                return self._compiler.compile_structural_tag(to_xgrammar(node, MAX_WHITE_SPACE))
        raise InvalidGrammar(f"unknown kind {spec.kind!r}")

    def _json_schema(self, schema: dict[str, object]) -> Any:  # noqa: ANN401
        check_keywords(schema)
        return self._compiler.compile_json_schema(
            json.dumps(as_any_of(with_exact_formats(schema))),
            max_whitespace_cnt=MAX_WHITE_SPACE,
            strict_mode=False,
        )


def _without_place(message: str) -> str:
    """The library's message without the time and the line of its source that it begins with."""
    _, found, rest = message.partition("] ")
    _, colon, reason = rest.partition(": ")
    return one_line(reason if found and colon and message.startswith("[") else message)
