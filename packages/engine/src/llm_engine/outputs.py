"""Owns what callers of `LLM` and `AsyncLLM` receive; knows nothing of how it is made."""

from dataclasses import dataclass
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities (natural logarithm) at one position, of the raw distribution.

    Attributes:
        token_id: The token that stands at this position.
        logprob: Its log probability, finite: -inf is reported as -9999.0.
        rank: Its rank in the distribution, 1 being the most likely.
        top: The most likely tokens as (id, log probability), falling; as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class RequestDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one choice of a request gained since the delta before it.

    Joined over all deltas of an index, `text`, `token_ids` and `logprobs` give the whole answer. A delta may
    hold tokens and no text (characters not complete yet, or text held back as a stop string may begin in it).
    The token that ended a choice (end of sequence, stop token, or the one that completed a stop string) is in
    `token_ids` and `logprobs`; `text` ends before the stop unless `include_stop_str_in_output` was set.

    Attributes:
        request_id: The caller's id of the request.
        index: Which of the `n` choices.
        text: New text.
        token_ids: New tokens.
        logprobs: One entry for each of `token_ids`; None when not asked for.
        finish_reason: "stop", "length" or "abort" on the last delta of the choice, None before.
        stop_reason: The stop string or stop token id that ended the choice; None for the end of sequence.
        num_prompt_tokens: Tokens in the prompt.
        num_cached_tokens: Of these, how many came from the prefix cache.
        num_output_tokens: Output tokens of this choice so far, this delta included.
        prompt_logprobs: If asked for, on the first delta of index 0: an entry a token, None for the first.
        pinned_tokens: On the first delta of index 0: for each of the request's pins, how many tokens are kept
            in the prefix cache.
        queue_s: On the first delta of a choice: seconds that it waited in the core for its first step.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    pinned_tokens: tuple[int, ...] = ()
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One whole choice of a request; the fields are those of `RequestDelta`, joined."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request with all of its choices.

    Attributes:
        request_id: The request.
        prompt: The prompt's text; None when it was given as token ids.
        prompt_token_ids: The prompt's tokens.
        prompt_logprobs: One entry a prompt token (None for the first) when asked for, else None.
        outputs: The `n` choices in order of their index.
        num_cached_tokens: Prompt tokens of choice 0 that came from the prefix cache.
        finished: True when every choice has ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    num_cached_tokens: int = 0
    finished: bool = True
