"""Compiles grammars and tells which tokens they allow, with llguidance; knows nothing of requests or devices.

One compiler belongs to one tokenizer. Its methods are safe to call from several threads.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark
from llm_tokenizer import Tokenizer
from numpy.typing import NDArray

from llm_engine.grammar.spec import MAX_CHARS, GrammarSpec

_MAX_COMPILED = 256
_MAX_CHOICES = 10_000
# More would compile and end the request at its second token: four items each of the parser's 2,000 a step.
_MAX_PROPERTIES = 400
_GBNF_RULE = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)
# Between two tokens of JSON; without a bound a model may go on with it for ever.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,16}"
# So much work a grammar and a step of it may cost, in llguidance's units: about a second, and a tenth of one.
_INITIAL_FUEL = 10_000_000
_STEP_FUEL = 1_000_000


class InvalidGrammar(ValueError):
    """The text is no grammar of its kind, holds a keyword that cannot be enforced, or costs too much."""


class Matcher:
    """Follows one output through a grammar."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int], free: _FreeText | None) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._free = free

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on, such as a step that costs too much; None where it can."""
        return self._matcher.get_error() if self._matcher.is_error() else None

    def accept(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that the output gained."""
        for token_id in token_ids:
            if self._free is not None:
                if self._free.ends_with(token_id):
                    self._free = None
            elif token_id not in self._eos_token_ids:
                self._matcher.consume_token(token_id)

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Write which tokens may come next.

        Args:
            bits: int32[words], contiguous; bit i of word w stands for the token 32 w + i.
        """
        if self._free is not None:
            bits.fill(-1)
            return
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)


class Grammar:
    """A compiled grammar; each output has a matcher of its own."""

    def __init__(self, matcher: LLMatcher, compiler: GrammarCompiler, after: str) -> None:
        self._matcher = matcher
        self._compiler = compiler
        self._after = after.encode()

    def start(self, token_ids: Sequence[int] = ()) -> Matcher:
        """A matcher of an output that begins with ``token_ids``."""
        free = _FreeText(self._compiler, self._after) if self._after else None
        matcher = Matcher(self._matcher.deep_copy(), self._compiler.eos_token_ids, free)
        matcher.accept(token_ids)
        return matcher


class GrammarCompiler:
    """Compiles grammars over one tokenizer's tokens, and remembers them.

    Args:
        tokenizer: The model's.
        eos_token_ids: The tokens that end an output; allowed where the grammar is complete.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.num_words = -(-tokenizer.vocab_size // 32)
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[GrammarSpec, Grammar] = OrderedDict()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokenizer.token_bytes(token_id)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of a spec.

        Raises:
            InvalidGrammar: It cannot be compiled; the message names what is at fault.
        """
        with self._lock:
            found = self._compiled.get(spec)
            if found is not None:
                self._compiled.move_to_end(spec)
                return found
            tokens = self._llguidance_tokens()
        source = _source(spec)
        limits = LLParserLimits(initial_lexer_fuel=_INITIAL_FUEL, step_lexer_fuel=_STEP_FUEL)
        matcher = LLMatcher(tokens, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidGrammar(_one_line(matcher.get_error()))
        self._check_not_empty(matcher)
        grammar = Grammar(matcher, self, spec.after)
        with self._lock:
            self._compiled[spec] = grammar
            while len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return grammar

    def _check_not_empty(self, matcher: LLMatcher) -> None:
        """Refuse what compiles and yet has no first token, such as a reference to itself alone."""
        first, bits = matcher.deep_copy(), np.zeros(self.num_words, np.int32)
        first.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if first.is_error() or not bits.any():
            raise InvalidGrammar("it allows no text at all")

    def _llguidance_tokens(self) -> LLTokenizer:
        if self._tokens is None:
            wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer, self.eos_token_ids))
            self._tokens = LLTokenizer(wrapper, eos_token=sorted(self.eos_token_ids))
        return self._tokens


class _FreeText:
    """The part of an output before its grammar begins."""

    def __init__(self, compiler: GrammarCompiler, mark: bytes) -> None:
        self._compiler = compiler
        self._mark = mark
        self._tail = b""

    def ends_with(self, token_id: int) -> bool:
        """Take a token; whether the mark is complete with it."""
        self._tail += self._compiler.token_bytes(token_id)
        if self._mark in self._tail:
            return True
        self._tail = self._tail[-len(self._mark) :]
        return False


class _Vocabulary:
    """A tokenizer as llguidance takes one."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.eos_token_id = min(eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _source(spec: GrammarSpec) -> str:
    """The grammar in llguidance's notation."""
    if len(spec.text) > MAX_CHARS:
        raise InvalidGrammar(f"longer than {MAX_CHARS} characters")
    match spec.kind:
        case "json_object":
            return _json_schema({"type": "object"})
        case "json_schema":
            return _json_schema(_parsed(spec.text))
        case "regex":
            return LLMatcher.grammar_from_regex(spec.text)
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(_choices(spec.text)))
        case "grammar":
            _check_rules(spec.text)
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(spec.text))
            except Exception as error:  # noqa: BLE001 -- the library raises plain exceptions
                raise InvalidGrammar(_one_line(str(error))) from None
    raise InvalidGrammar(f"unknown kind {spec.kind!r}")


def _check_rules(text: str) -> None:
    """Refuse a GBNF rule that is given twice: the library would take the last one without a word."""
    seen: set[str] = set()
    for name in _GBNF_RULE.findall(text):
        if name in seen:
            raise InvalidGrammar(f"the rule {name[:40]!r} is given twice")
        seen.add(name)


def _check_width(schema: object) -> None:
    """Refuse an object of too many properties, at any depth."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict) and len(properties) > _MAX_PROPERTIES:
                raise InvalidGrammar(
                    f"properties: at most {_MAX_PROPERTIES} in one object, got {len(properties)}"
                )
            parts += part.values()


def _json_schema(schema: object) -> str:
    if schema is False:
        raise InvalidGrammar("the schema false allows nothing")
    if not isinstance(schema, dict | bool):
        raise InvalidGrammar("a JSON schema is an object")
    _check_width(schema)
    overrides = {"whitespace_pattern": _WHITE_SPACE, "lenient": False}
    text = json.dumps({} if schema is True else schema)
    return LLMatcher.grammar_from_json_schema(text, overrides=overrides)  # type: ignore[arg-type]


def _choices(text: str) -> list[str]:
    choices = _parsed(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise InvalidGrammar("choices are a list of strings, at least one")
    if not all(choices) or len(choices) > _MAX_CHOICES:
        raise InvalidGrammar(f"choices must not be empty, and at most {_MAX_CHOICES}")
    return [json.dumps(choice, ensure_ascii=False) for choice in choices]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"not JSON: {error}") from None


def _one_line(message: str) -> str:
    return " ".join(message.split())[:500]
