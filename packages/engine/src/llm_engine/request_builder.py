"""Owns the way from a prompt and its settings to what the core is asked; knows nothing of outputs."""

import itertools
import random
from collections.abc import Iterable, Sequence

import numpy as np
from llm_tokenizer import Tokenizer

from llm_engine.cache_pins import CachePin, check_pins
from llm_engine.core.messages import AddRequest, CoreInfo, request_id_of
from llm_engine.errors import InvalidRequest
from llm_engine.grammar.spec import MAX_CHARS
from llm_engine.live_requests import Choice, DeltaSink, LiveRequest
from llm_engine.prompts import TokensPrompt
from llm_engine.sampling_params import INT64_MAX, SamplingParams
from llm_engine.validation import ModelLimits, validate_request
from llm_engine.worker.row_params import RowParams


class RequestBuilder:
    """Builds requests for one engine.

    Args:
        tokenizer: The model's; None for a model without one, which takes and gives token ids only.
        info: What the core told of the model.
        seed: Of the generator that gives requests without a seed of their own one.
        one_seed: Such requests get `seed` itself instead, so that the order of requests has no influence.
        front: The number of the front end in its core.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        info: CoreInfo,
        seed: int,
        *,
        one_seed: bool = False,
        front: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = ModelLimits(max_model_len=info.max_model_len, vocab_size=info.vocab_size)
        self._eos_token_ids = tuple(info.eos_token_ids)
        self._seeds = random.Random(seed)  # noqa: S311 - sampling, not cryptography
        self._one_seed = seed if one_seed else None
        self._front = front
        self._ids = itertools.count()

    def build(
        self,
        prompt: TokensPrompt,
        params: SamplingParams,
        request_id: str,
        priority: int,
        sink: DeltaSink,
        *,
        tenant: str = "",
        cache_salt: bytes | None = None,
        cache_pins: Sequence[CachePin] = (),
    ) -> LiveRequest:
        """Check a request and make its choices; nothing is queued yet.

        Raises:
            InvalidRequest: The field is named.
        """
        max_tokens = validate_request(prompt.token_ids, params, self._limits)
        self._check_grammar(params)
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
            raise InvalidRequest("priority", f"must be a 32-bit integer, got {str(priority)[:40]}")
        if not isinstance(tenant, str):
            raise InvalidRequest("tenant", f"must be a string, got {type(tenant).__name__}")
        if cache_salt is not None and not isinstance(cache_salt, bytes):
            raise InvalidRequest("cache_salt", f"must be bytes or None, got {type(cache_salt).__name__}")
        check_pins(cache_pins, len(prompt.token_ids))
        if params.detokenize and self._tokenizer is None:
            raise InvalidRequest("detokenize", "must be false: the model has no tokenizer")
        seed = params.seed
        if seed is None:
            seed = self._seeds.getrandbits(63) if self._one_seed is None else self._one_seed
        stop_reasons = self._stop_reasons(params)
        token_ids = np.asarray(prompt.token_ids, "<i4").tobytes()
        choices = [
            Choice(
                index=index,
                message=AddRequest(
                    request_id=request_id_of(self._front, next(self._ids)),
                    token_ids=token_ids,
                    max_tokens=max_tokens,
                    min_tokens=params.min_tokens,
                    stop_token_ids=list(stop_reasons),
                    priority=priority,
                    match_prefix=index > 0 or params.prompt_logprobs is None,
                    params=_row_params(params, index, seed, stop_reasons),
                    tenant=tenant,
                    salt=cache_salt,
                    cache_pins=[] if index else list(cache_pins),
                ),
                stop_reasons=stop_reasons,
            )
            for index in range(params.n)
        ]
        return LiveRequest(request_id=request_id, prompt=prompt, params=params, choices=choices, sink=sink)

    def _check_grammar(self, params: SamplingParams) -> None:
        """What can be told without compiling; the core compiles, and refuses what it cannot."""
        if params.grammar is None:
            return
        if self._tokenizer is None or not self._eos_token_ids:
            raise InvalidRequest("grammar", "the model has no tokenizer, or no end of sequence token")
        if len(params.grammar.text) > MAX_CHARS:
            raise InvalidRequest("grammar", f"longer than {MAX_CHARS} characters")

    def _stop_reasons(self, params: SamplingParams) -> dict[int, str | int | None]:
        """Every token id that ends the request, with the reason to report."""
        reasons: dict[int, str | int | None] = {}
        if not params.ignore_eos:
            reasons.update(dict.fromkeys(self._eos_token_ids))
        reasons.update(self._special_stops(params))
        reasons.update((token, token) for token in params.stop_token_ids)
        return reasons

    def _special_stops(self, params: SamplingParams) -> Iterable[tuple[int, str]]:
        """Stop strings that are special tokens: these leave no text to search, so the token itself stops."""
        if self._tokenizer is None:
            return
        for stop in params.stop_strings:
            token = self._tokenizer.token_to_id(stop)
            if token is not None and token in self._tokenizer.special_token_ids:
                yield token, stop


def _row_params(params: SamplingParams, index: int, seed: int, stop_token_ids: Iterable[int]) -> RowParams:
    return RowParams(
        seed=_wrap_int64(seed + index),
        temperature=0.0 if params.is_greedy else params.temperature,
        top_p=params.top_p,
        top_k=max(0, params.top_k),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        grammar=params.grammar,
        logit_bias=dict(params.logit_bias) if params.logit_bias else None,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(stop_token_ids),
    )


def _wrap_int64(value: int) -> int:
    """The value as a signed 64-bit integer, wrapped around."""
    return (value + INT64_MAX + 1) % 2**64 - INT64_MAX - 1
