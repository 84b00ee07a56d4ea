"""Owns the per-request generation settings and the range of each; knows nothing of a model or an engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_engine.errors import InvalidRequest
from llm_engine.grammar.spec import GrammarSpec

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is generated. Checked when made: a bad value raises `InvalidRequest` naming the field.

    Attributes:
        n: Choices to generate from the same prompt, 1 to 128.
        temperature: 0 to 100. 0 (and anything below 1e-5) is greedy.
        top_p: Keep the smallest set of tokens with this probability mass; above 0, up to 1.
        top_k: Keep this many tokens; 0 and -1 keep all.
        min_p: Drop tokens less likely than this share of the most likely one; 0 to 1.
        presence_penalty: -2 to 2, on tokens that occur in the output.
        frequency_penalty: -2 to 2, times the count in the output.
        repetition_penalty: Above 0, up to 100; divides positive and multiplies negative logits of tokens
            seen in prompt or output. 1 is off.
        seed: A 64-bit integer makes the draws repeatable, whatever else runs in the batch. Choice i of `n`
            uses `seed + i`. None: a fresh seed from the engine's generator.
        max_tokens: Output tokens at most; None: up to the end of the context. 0 only with `prompt_logprobs`
            (scores the prompt, generates nothing).
        min_tokens: No stop condition ends the output before this many tokens.
        stop: A string or several (up to 64) that end the output where they complete.
        stop_token_ids: Token ids that end the output.
        ignore_eos: Do not stop at the end of sequence token.
        logprobs: 0 to 20: report each token's log probability and this many alternatives. None: nothing.
        prompt_logprobs: The same for the prompt's tokens.
        logit_bias: Token id to a bias of -100 to 100, added to the logits; up to 1024 entries.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop_str_in_output: Keep the stop string (or stop token) at the end of the text.
        grammar: What the output must look like; excludes `min_tokens` and `ignore_eos`. None: anything.
        detokenize: False: token ids only, no text; excludes `stop`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    grammar: GrammarSpec | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        self._check_stops()
        self._check_logit_bias()
        self._check_grammar()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(name, f"must be true or false, got {_show(getattr(self, name))}")
        if self.stop_strings and not self.detokenize:
            raise InvalidRequest("stop", "stop strings need detokenize=True")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever way it was given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken at each position."""
        return self.temperature < GREEDY_BELOW

    def _check_numbers(self) -> None:
        check_int("n", self.n, 1, MAX_N)
        check_float("temperature", self.temperature, 0.0, 100.0)
        check_float("top_p", self.top_p, 0.0, 1.0, exclude_low=True)
        check_int("top_k", self.top_k, -1, INT32_MAX)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, exclude_low=True)
        if self.seed is not None:
            check_int("seed", self.seed, -INT64_MAX - 1, INT64_MAX)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 0, INT32_MAX)
            if self.max_tokens == 0 and self.prompt_logprobs is None:
                raise InvalidRequest(
                    "max_tokens", "must be at least 1, got 0 (0 is for prompt_logprobs only)"
                )
            if self.max_tokens == 0 and self.n > 1:
                raise InvalidRequest("n", "must be 1 when max_tokens is 0")
        check_int("min_tokens", self.min_tokens, 0, INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", f"must not exceed max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )

    def _check_stops(self) -> None:
        if self.stop is not None and not isinstance(self.stop, str):
            _check_sequence("stop", self.stop, MAX_STOP_STRINGS)
        for text in self.stop_strings:
            if not isinstance(text, str):
                raise InvalidRequest("stop", f"must hold strings, got {_show(text)}")
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidRequest(
                    "stop", f"each string must have 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}"
                )
            check_unicode("stop", text)
        _check_sequence("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        for token in self.stop_token_ids:
            check_int("stop_token_ids", token, 0, INT32_MAX)

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if not isinstance(self.grammar, GrammarSpec):
            raise InvalidRequest("grammar", f"must be a GrammarSpec, got {_show(self.grammar)}")
        if self.min_tokens:
            raise InvalidRequest(
                "min_tokens", "must be 0 with a grammar, which says when the output is whole"
            )
        if self.ignore_eos:
            raise InvalidRequest("ignore_eos", "must be false with a grammar, which ends the output")

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest("logit_bias", f"must map token ids to numbers, got {_show(self.logit_bias)}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest(
                "logit_bias", f"at most {MAX_LOGIT_BIAS_ENTRIES} entries, got {len(self.logit_bias)}"
            )
        for token, bias in self.logit_bias.items():
            check_int("logit_bias", token, 0, INT32_MAX)
            check_float("logit_bias", bias, -100.0, 100.0)


def check_int(field: str, value: object, low: int, high: int) -> None:
    """Raise `InvalidRequest(field)` unless `value` is an integer (no bool) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, f"must be an integer, got {_show(value)}")
    if not low <= value <= high:
        raise InvalidRequest(field, f"must be between {low} and {high}, got {_show(value)}")


def check_float(field: str, value: object, low: float, high: float, *, exclude_low: bool = False) -> None:
    """Raise `InvalidRequest(field)` unless `value` is a finite number (no bool) in the range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(field, f"must be a number, got {_show(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(field, f"must be finite, got {value}")
    if not low <= value <= high or (exclude_low and value == low):
        border = "above" if exclude_low else "at least"
        raise InvalidRequest(field, f"must be {border} {low:g} and at most {high:g}, got {_show(value)}")


def check_unicode(field: str, text: str) -> None:
    """Raise `InvalidRequest(field)` when `text` holds an unpaired surrogate, which no UTF-8 text can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, f"not valid Unicode: {error.reason} at character {error.start}") from None


def _check_sequence(field: str, value: object, limit: int) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRequest(field, f"must be a list, got {_show(value)}")
    if len(value) > limit:
        raise InvalidRequest(field, f"at most {limit} entries, got {len(value)}")


def _show(value: object) -> str:
    """The value for a message, its length bounded: it comes from outside."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge integer"
    return text if len(text) <= 80 else f"{text[:77]}..."
