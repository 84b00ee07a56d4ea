"""Owns the way from step outputs to deltas of text, tokens and logprobs; knows nothing of queues or loops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from llm_tokenizer import Tokenizer

from llm_engine.core.messages import AddRequest, Refusal, Row, StepOutputs
from llm_engine.errors import EngineBusy, EngineError, InvalidRequest, RequestFailed
from llm_engine.late_stops import LateStops
from llm_engine.live_requests import Choice, LiveRequest
from llm_engine.outputs import FinishReason, RequestDelta

_PROMPT_TAIL_TOKENS = 16
_NO_TEXT: tuple[str, str | None] = ("", None)
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "error": "error",
}


@dataclass(slots=True)
class Followup:
    """What the core is to be told after a step."""

    add: list[AddRequest] = field(default_factory=list)
    abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """Keeps the live requests and turns each step's outputs into their deltas.

    Args:
        tokenizer: The model's, or None for a model without one.
        share_from_tokens: With `n` choices and a prompt of this many tokens or more, the first choice runs
            ahead until its prompt is cached; None where there is no prefix cache.
    """

    def __init__(self, tokenizer: Tokenizer | None, share_from_tokens: int | None) -> None:
        self._detokenizer = None if tokenizer is None else tokenizer.detokenizer()
        self._share_from_tokens = share_from_tokens
        self._live: dict[str, tuple[LiveRequest, Choice]] = {}

    @property
    def num_live(self) -> int:
        """Choices under way."""
        return len(self._live)

    def open(self, live: LiveRequest) -> list[AddRequest]:
        """Take a request in; returns what the core is to be told now."""
        for choice in live.choices:
            self._open_text(live, choice)
            self._live[choice.core_id] = (live, choice)
            live.open.add(choice.index)
        if self._share_from_tokens is not None and len(live.prompt.token_ids) >= self._share_from_tokens:
            live.held = live.choices[1:]
        return [choice.message for choice in live.choices if choice not in live.held]

    def close(self, live: LiveRequest) -> list[str]:
        """Forget a request; returns the ids the core is to abort. Nothing more goes to its sink."""
        held = {choice.core_id for choice in live.held}
        ended = [choice for choice in live.choices if choice.index in live.open]
        for choice in ended:
            self._close_choice(live, choice)
        live.held = []
        return [choice.core_id for choice in ended if choice.core_id not in held]

    def abort(self, live: LiveRequest) -> list[str]:
        """End a request with "abort" for each open choice; returns the ids the core is to abort."""
        for choice in live.choices:
            if choice.index in live.open:
                text = self._flush_text(choice)
                live.sink(_delta(live, choice, text=text, token_ids=(), finish_reason="abort"))
        return self.close(live)

    def fail_all(self, error: EngineError) -> None:
        """End every live request with an error."""
        for live in {id(live): live for live, _ in self._live.values()}.values():
            self.close(live)
            live.sink(error)

    def resume(self, ended: Mapping[str, str]) -> list[AddRequest]:
        """What a new core, which knows of no request, is to be told.

        Args:
            ended: Core ids of requests that must not go on, with the reason; they end here.
        """
        for core_id, reason in ended.items():
            if core_id in self._live:
                live, _ = self._live[core_id]
                self.close(live)
                live.sink(RequestFailed(reason, live.request_id))
        return [
            choice.resumed()
            for live, choice in self._live.values()
            if not live.held or choice not in live.held
        ]

    def process(self, outputs: StepOutputs) -> Followup:
        """Give each request of the step its delta or error.

        Outputs of requests that are not live any more (aborted, ended by a stop string) are dropped.
        """
        followup = Followup()
        for refusal in outputs.refusals:
            if refusal.request_id in self._live:
                live, _ = self._live[refusal.request_id]
                self._fail(live, _refusal_error(refusal), followup)
        known = self._live
        found = [(row, *known[row.request_id]) for row in outputs.rows if row.request_id in known]
        for (row, live, choice), (text, stop) in zip(found, self._new_texts(found), strict=True):
            if row.request_id not in known:
                continue  # another choice of its request failed in this very step
            if row.error is not None:
                self._fail(live, RequestFailed(row.error, live.request_id), followup)
                continue
            self._advance(live, choice, row, text, stop, followup)
        return followup

    def _advance(
        self, live: LiveRequest, choice: Choice, row: Row, text: str, stop: str | None, followup: Followup
    ) -> None:
        """Gives a row's tokens, their text and the stop string that they completed to its request."""
        if not choice.has_begun:
            choice.has_begun = True
            choice.num_cached_tokens = row.num_cached_tokens
        elif row.pinned_tokens or row.queue_s:  # again in a new core: that was told
            row = msgspec.structs.replace(row, pinned_tokens=[], queue_s=0.0)
        choice.log.extend(row.tokens)
        if live.held:
            followup.add.extend(held.message for held in live.held)
            live.held = []
        finish_reason = None if row.finish_reason is None else _FINISH_REASONS[row.finish_reason]
        stop_reason: str | int | None = None
        if stop is not None:
            if finish_reason is None:
                followup.abort.append(choice.core_id)
            finish_reason, stop_reason = "stop", stop
        elif finish_reason is not None:
            stop_reason = None if row.stop_token is None else choice.stop_reasons.get(row.stop_token)
            text += self._flush_text(choice)
            if isinstance(stop_reason, str) and live.params.include_stop_str_in_output:
                text += stop_reason
        live.sink(self._row_delta(live, choice, row, text, finish_reason, stop_reason))
        if finish_reason is not None:
            self._close_choice(live, choice)

    def _row_delta(
        self,
        live: LiveRequest,
        choice: Choice,
        row: Row,
        text: str,
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
    ) -> RequestDelta:
        params = live.params
        token_ids = () if params.max_tokens == 0 else tuple(row.tokens)
        choice.num_output_tokens += len(token_ids)
        return RequestDelta(
            request_id=live.request_id,
            index=choice.index,
            text=text,
            token_ids=token_ids,
            logprobs=None if params.logprobs is None else (row.logprobs or ())[: len(token_ids)],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=len(live.prompt.token_ids),
            num_cached_tokens=choice.num_cached_tokens,
            num_output_tokens=choice.num_output_tokens,
            prompt_logprobs=row.prompt_logprobs,
            pinned_tokens=tuple(row.pinned_tokens),
            queue_s=row.queue_s,
        )

    def _fail(self, live: LiveRequest, error: EngineError, followup: Followup) -> None:
        followup.abort.extend(self.close(live))
        live.sink(error)

    # Text

    def _open_text(self, live: LiveRequest, choice: Choice) -> None:
        params = live.params
        if not params.detokenize or self._detokenizer is None:
            return
        stops, include = params.stop_strings, params.include_stop_str_in_output
        if stops and params.min_tokens > 1:
            choice.late_stops = LateStops(stops, include_stop=include)
            stops = ()
        choice.slot = self._detokenizer.open(
            live.prompt.token_ids[-_PROMPT_TAIL_TOKENS:],
            skip_special_tokens=params.skip_special_tokens,
            stop=stops,
            include_stop_str_in_output=include,
        )

    def _new_texts(self, found: Sequence[tuple[Row, LiveRequest, Choice]]) -> list[tuple[str, str | None]]:
        """For each row its new text and the stop string that completed in it; one call of the detokenizer."""
        texts = [_NO_TEXT] * len(found)
        places: list[int] = []
        slots: list[int] = []
        ids: list[int] = []
        offsets = [0]
        for place, (row, live, choice) in enumerate(found):
            if choice.slot is not None and (tokens := _shown_tokens(row, live)):
                places.append(place)
                slots.append(choice.slot)
                ids += tokens
                offsets.append(len(ids))
        if not places or self._detokenizer is None:
            return texts
        step = self._detokenizer.step(
            np.array(slots, np.int32), np.array(ids, np.int32), np.array(offsets, np.int32)
        )
        for place, text, stop in zip(places, step.texts, step.stops.tolist(), strict=True):
            row, live, choice = found[place]
            if choice.late_stops is not None:
                armed = choice.num_output_tokens + len(row.tokens) >= live.params.min_tokens
                text, stop = choice.late_stops.push(text, armed=armed)
            texts[place] = (text, live.params.stop_strings[stop] if stop >= 0 else None)
        return texts

    def _flush_text(self, choice: Choice) -> str:
        """The text still held back; closes the choice's detokenizer slot."""
        if choice.slot is None or self._detokenizer is None:
            return ""
        text = self._detokenizer.finish(choice.slot)
        choice.slot = None
        if choice.late_stops is not None:
            text = choice.late_stops.push(text, armed=False)[0] + choice.late_stops.finish()
        return text

    def _close_choice(self, live: LiveRequest, choice: Choice) -> None:
        if choice.slot is not None and self._detokenizer is not None:
            self._detokenizer.close(choice.slot)
            choice.slot = None
        live.open.discard(choice.index)
        self._live.pop(choice.core_id, None)


def _shown_tokens(row: Row, live: LiveRequest) -> list[int]:
    """The row's tokens that are to become text: not the stop token, unless it was asked for."""
    if row.error is not None or live.params.max_tokens == 0:
        return []
    if row.stop_token is None or live.params.include_stop_str_in_output:
        return row.tokens
    return row.tokens[:-1]


def _delta(
    live: LiveRequest,
    choice: Choice,
    *,
    text: str,
    token_ids: tuple[int, ...],
    finish_reason: FinishReason | None,
) -> RequestDelta:
    return RequestDelta(
        request_id=live.request_id,
        index=choice.index,
        text=text,
        token_ids=token_ids,
        logprobs=None if live.params.logprobs is None else (),
        finish_reason=finish_reason,
        num_prompt_tokens=len(live.prompt.token_ids),
        num_output_tokens=choice.num_output_tokens,
    )


def _refusal_error(refusal: Refusal) -> EngineError:
    if refusal.retry_after_s is not None:
        return EngineBusy(refusal.retry_after_s)
    return InvalidRequest(refusal.field, refusal.message)
