"""Ends a model's thinking where its budget is spent, and has it go on with the answer. Knows nothing of HTTP.

The end of the thinking is put behind the tokens so far, and both become the prompt of a second request. What
was computed for the first one is in the prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, cast

import msgspec
from llm_engine.errors import EngineBusy
from llm_engine.outputs import RequestDelta
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.engine_port import TextCodec
from llm_stack_server.output_formats.events import Text
from llm_stack_server.output_formats.plain import AnswerReader

_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """A limit on an answer's thinking.

    Attributes:
        num_tokens: Tokens from the start of the answer, of which thinking may take this many. 0: none at all.
        opening: What opens the thinking, where the prompt leaves the model free to.
        ending: What ends it.
        new_parser: Makes a parser for an answer behind the prompt.
    """

    num_tokens: int
    opening: str
    ending: str
    new_parser: Callable[[], AnswerReader]


class Submit(Protocol):
    """Has the engine generate."""

    def __call__(
        self, prompt: list[int], params: SamplingParams, *, first: bool
    ) -> AsyncIterator[RequestDelta]:
        """Deltas of one choice; ``first`` is false for what goes on behind the thinking."""
        ...


async def within_budget(
    submit: Submit,
    codec: TextCodec,
    prompt: list[int],
    params: SamplingParams,
    budget: ThinkingBudget,
    max_model_len: int,
) -> AsyncGenerator[RequestDelta, None]:
    """The deltas of an answer whose thinking ends in time; ``params.n`` is 1.

    Raises:
        llm_engine.errors.EngineError: as the engine raises it.
    """
    watch = _Watch(codec, params, budget)
    request_id, num_cached = "", 0
    if budget.num_tokens:
        stream = cast("AsyncGenerator[RequestDelta, None]", submit(prompt, params, first=True))
        async with aclosing(stream):
            async for delta in stream:
                request_id, num_cached = delta.request_id, max(num_cached, delta.num_cached_tokens)
                kept = watch.take(delta)
                yield kept
                if watch.is_spent:
                    break
        if not watch.is_spent:
            return
    text = budget.ending if budget.num_tokens else budget.opening + budget.ending.lstrip("\n")
    ending = codec.encode(text, add_special_tokens=False)
    begun = [*watch.token_ids, *ending]
    left = None if params.max_tokens is None else params.max_tokens - len(begun)
    room = max_model_len - len(prompt) - len(begun)
    is_over = room <= 0 or (left is not None and left <= 0)
    if left is not None and left < 0:  # the limit falls into what ends the thinking
        ending, text = ending[:left], ""
    yield RequestDelta(
        request_id=request_id,
        index=0,
        text=text,
        token_ids=tuple(ending),
        finish_reason="length" if is_over else None,
        num_prompt_tokens=len(prompt),
        num_cached_tokens=num_cached,
        num_output_tokens=len(watch.token_ids) + len(ending),
    )
    if is_over:
        return
    async for delta in _patient(submit, [*prompt, *begun], _params_behind(params, left, len(begun))):
        yield msgspec.structs.replace(
            delta,
            num_prompt_tokens=len(prompt),
            num_cached_tokens=num_cached,
            num_output_tokens=delta.num_output_tokens + len(begun),
        )


def _params_behind(params: SamplingParams, left: int | None, num_begun: int) -> SamplingParams:
    """The parameters of what comes behind the thinking; a grammar begins there."""
    grammar = params.grammar
    if grammar is not None:
        grammar = msgspec.structs.replace(grammar, after="", opens="")
    return replace(params, max_tokens=left, min_tokens=max(0, params.min_tokens - num_begun), grammar=grammar)


async def _patient(
    submit: Submit, prompt: list[int], params: SamplingParams
) -> AsyncGenerator[RequestDelta, None]:
    """As `submit`; where the queue is full it waits, since the request was let in before."""
    has_begun = False
    while True:
        stream = cast("AsyncGenerator[RequestDelta, None]", submit(prompt, params, first=False))
        try:
            async with aclosing(stream):
                async for delta in stream:
                    has_begun = True
                    yield delta
            return
        except EngineBusy as error:
            if has_begun:
                raise
            await asyncio.sleep(min(error.retry_after_s, _LONGEST_PAUSE_S))


class _Watch:
    """Follows an answer until its thinking is over or its budget is spent."""

    def __init__(self, codec: TextCodec, params: SamplingParams, budget: ThinkingBudget) -> None:
        self._codec = codec
        self._skips_special = params.skip_special_tokens
        self._budget = budget
        self._parser = budget.new_parser()
        self._text = ""
        self._is_over = False
        self.token_ids: list[int] = []
        self.is_spent = False

    def take(self, delta: RequestDelta) -> RequestDelta:
        """The delta, cut off where the budget was spent in it."""
        if self._is_over:
            return delta
        before = len(self.token_ids)
        self.token_ids += delta.token_ids
        events = self._parser.feed(delta.text)
        room = self._budget.num_tokens - before
        if len(delta.token_ids) >= room:
            kept = self._cut(delta, before + max(0, room))
            if kept is not None:
                return kept
        self._text += delta.text
        # Whitespace may come before thinking that the model opens itself.
        if not self._parser.is_thinking and any(isinstance(e, Text) and e.text.strip() for e in events):
            self._is_over = True
        return delta

    def _cut(self, delta: RequestDelta, num_tokens: int) -> RequestDelta | None:
        """The delta up to the answer's first ``num_tokens``; None where these end outside of thinking."""
        first = len(self.token_ids) - len(delta.token_ids)
        num_tokens = max(num_tokens, first)
        if num_tokens == len(self.token_ids):
            text, is_thinking = delta.text, self._parser.is_thinking
        else:
            whole = self._codec.decode(
                self.token_ids[:num_tokens], skip_special_tokens=self._skips_special
            ).rstrip("\ufffd")
            if self._text.startswith(" ") and not whole.startswith(" "):
                whole = f" {whole}"  # some codecs drop the first one
            text = whole[len(self._text) :] if whole.startswith(self._text) else ""
            again = self._budget.new_parser()
            again.feed(self._text + text)
            is_thinking = again.is_thinking
        if not is_thinking or (delta.finish_reason is not None and num_tokens == len(self.token_ids)):
            return None
        kept = num_tokens - first
        self.token_ids = self.token_ids[:num_tokens]
        self.is_spent = True
        return msgspec.structs.replace(
            delta,
            text=text,
            token_ids=delta.token_ids[:kept],
            finish_reason=None,
            stop_reason=None,
            num_output_tokens=num_tokens,
        )
