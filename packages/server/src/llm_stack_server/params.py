"""Turns the sampling fields of a request into `SamplingParams`. Knows nothing of prompts or of answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.errors import InvalidField
from llm_stack_server.schemas.chat import ChatRequest
from llm_stack_server.schemas.completion import CompletionRequest
from llm_stack_server.schemas.sampling import SamplingFields

COMPLETION_DEFAULT_MAX_TOKENS = 16  # as OpenAI's

# Fields of the same name and meaning; None keeps the model's default.
_SAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def chat_limit_name(request: ChatRequest) -> str:
    """The spelling under which the client limits its answer."""
    return "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"


def chat_params(request: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    """The parameters of a chat request; without a limit the answer may fill the context.

    Args:
        request: The body.
        defaults: What holds for sampling fields that the body leaves out.

    Raises:
        InvalidField: a value is out of range; names the field as the client spelled it.
    """
    limit_name = chat_limit_name(request)
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidField(
            "max_completion_tokens", "max_completion_tokens and max_tokens differ; give one of them"
        )
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _build(request, defaults, limit_name, max_tokens=getattr(request, limit_name), logprobs=logprobs)


def completion_params(
    request: CompletionRequest, defaults: SamplingParams, *, room_tokens: int
) -> SamplingParams:
    """The parameters of one prompt of a completion request.

    Args:
        request: The body.
        defaults: What holds for sampling fields that the body leaves out.
        room_tokens: Tokens left in the context behind the prompt; bounds the default limit only.

    Raises:
        InvalidField: a value is out of range.
    """
    limit = request.max_tokens
    if limit is None:
        limit = max(1, min(COMPLETION_DEFAULT_MAX_TOKENS, room_tokens))
    prompt_logprobs = request.logprobs if request.echo else None
    if limit == 0:
        if not request.echo:
            raise InvalidField("max_tokens", "max_tokens: must be at least 1 (0 is allowed with echo only)")
        prompt_logprobs = request.logprobs or 0  # the engine generates nothing only while it scores a prompt
    return _build(
        request,
        defaults,
        "max_tokens",
        max_tokens=limit,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _build(
    request: SamplingFields,
    defaults: SamplingParams,
    limit_name: str,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    same: dict[str, Any] = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    try:
        return dataclasses.replace(
            defaults,
            **same,
            stop=request.stop,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
    except InvalidRequest as error:
        param = limit_name if error.field == "max_tokens" else error.field
        raise InvalidField(param, f"{param}: {error.message}") from None


def check_stream_options(request: SamplingFields) -> None:
    """``stream_options`` without ``stream`` is refused, as OpenAI does."""
    if request.stream_options is not None and not request.stream:
        raise InvalidField("stream_options", "stream_options needs stream to be true")
