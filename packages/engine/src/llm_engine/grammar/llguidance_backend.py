"""Enforces grammars with llguidance: its notation, its limits, its matchers; knows no other library."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark
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
from llm_engine.grammar.tags_to_lark import to_lark
from llm_engine.grammar.vocabulary import Vocabulary

_GBNF_RULE = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0," + str(MAX_WHITE_SPACE) + "}"
# So much work a grammar and a step of it may cost, in llguidance's units: about a second, and a tenth of one.
_INITIAL_FUEL = 10_000_000
_STEP_FUEL = 1_000_000
# Fewer rows are filled by one thread.
_PARALLEL_FROM = 4
_MAX_THREADS = 8


class LlguidanceMatcher:
    """See `TokenMatcher`."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on."""
        return one_line(self.matcher.get_error()) if self.matcher.is_error() else None

    def accept(self, token_id: int) -> None:
        """Take a token."""
        self.matcher.consume_token(token_id)


class _Compiled:
    num_bytes = 0

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._matcher.deep_copy())


class LlguidanceBackend:
    """See `GrammarBackend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._executor: LLExecutor | None = None

    def prepare(self) -> None:
        """Make the table of the vocabulary."""
        self._tokenizer()

    def compile(self, spec: GrammarSpec) -> _Compiled:
        """See `GrammarBackend.compile`."""
        source = _source(spec)
        limits = LLParserLimits(
            initial_lexer_fuel=_INITIAL_FUEL, step_lexer_fuel=_STEP_FUEL, verbose_errors=False
        )
        matcher = LLMatcher(self._tokenizer(), source, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidGrammar(one_line(matcher.get_error()))
        self._check_not_empty(matcher)
        return _Compiled(matcher)

    def fill(self, matchers: Sequence[LlguidanceMatcher], bits: NDArray[np.int32]) -> None:
        """See `GrammarBackend.fill`."""
        row_bytes = bits.shape[1] * bits.itemsize
        if len(matchers) < _PARALLEL_FROM:
            for row, one in zip(bits, matchers, strict=True):
                one.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row_bytes)
            return
        if self._executor is None:
            self._executor = LLExecutor(max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2)))
        numbered = [(one.matcher, place) for place, one in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, bits.ctypes.data, row_bytes, len(matchers))

    def _check_not_empty(self, matcher: LLMatcher) -> None:
        """Refuse what compiles and yet has no first token, such as a reference to itself alone."""
        first, bits = matcher.deep_copy(), np.zeros(self._vocabulary.num_words, np.int32)
        first.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if first.is_error() or not bits.any():
            raise InvalidGrammar("it allows no text at all")

    def _tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokens is None:
                eos = sorted(self._vocabulary.eos_token_ids)
                self._tokens = LLTokenizer(TokenizerWrapper(_Tokens(self._vocabulary)), eos_token=eos)
            return self._tokens


class _Tokens:
    """A vocabulary as llguidance takes one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.tokens = vocabulary.all_bytes()
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self.bos_token_id = vocabulary.bos_token_id
        self.special_token_ids = sorted(vocabulary.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)


def _source(spec: GrammarSpec) -> str:
    """The grammar in llguidance's notation."""
    match spec.kind:
        case "json_object":
            return _json_schema({"type": "object"})
        case "json_schema":
            return _json_schema(checked_schema(parsed(spec.text)))
        case "regex":
            return LLMatcher.grammar_from_regex(spec.text)
        case "choice":
            texts = [json.dumps(choice, ensure_ascii=False) for choice in checked_choices(spec.text)]
            return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
        case "grammar":
            _check_rules(spec.text)
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(spec.text))
            except Exception as error:  # noqa: BLE001 -- the library raises plain exceptions
                raise InvalidGrammar(one_line(str(error))) from None
        case "structural_tag":
            return LLMatcher.grammar_from_lark(to_lark(parse_structural_tag(parsed(spec.text)), WHITE_SPACE))
    raise InvalidGrammar(f"unknown kind {spec.kind!r}")


def _check_rules(text: str) -> None:
    """Refuse a GBNF rule that is given twice: the library would take the last one without a word."""
    seen: set[str] = set()
    for name in _GBNF_RULE.findall(text):
        if name in seen:
            raise InvalidGrammar(f"the rule {name[:40]!r} is given twice")
        seen.add(name)


def _json_schema(schema: dict[str, object]) -> str:
    schema = with_exact_formats(schema)
    overrides = {"whitespace_pattern": WHITE_SPACE, "lenient": False}
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides)  # type: ignore[arg-type]
