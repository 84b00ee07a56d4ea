"""Owns the way from step outputs to deltas of text, tokens and logprobs; knows nothing of queues or loops."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from llm_tokenizer import Tokenizer

from llm_engine.core.messages import AddRequest, Refusal, Row, StepOutputs
from llm_engine.errors import EngineBusy, EngineError, InvalidRequest, RequestFailed
from llm_engine.late_stops import LateStops
from llm_engine.live_requests import Choice, LiveRequest
from llm_engine.outputs import FinishReason, RequestDelta

_PROMPT_TAIL_TOKENS = 16
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


@dataclass(slots=True)
class _NewText:
    """What a row's new tokens show as text, and the stop string they completed."""

    text: str = ""
    stop: str | None = None


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

    def process(self, outputs: StepOutputs) -> Followup:
        """Give each request of the step its delta or error.

        Outputs of requests that are not live any more (aborted, ended by a stop string) are dropped.
        """
        followup = Followup()
        for refusal in outputs.refusals:
            if refusal.request_id in self._live:
                live, _ = self._live[refusal.request_id]
                self._fail(live, _refusal_error(refusal), followup)
        rows = [row for row in outputs.rows if row.request_id in self._live]
        for row, new in zip(rows, self._new_texts(rows), strict=True):
            if row.request_id not in self._live:
                continue  # another choice of its request failed in this very step
            live, choice = self._live[row.request_id]
            if row.error is not None:
                self._fail(live, RequestFailed(row.error, live.request_id), followup)
                continue
            self._advance(live, choice, row, new, followup)
        return followup

    def _advance(
        self, live: LiveRequest, choice: Choice, row: Row, new: _NewText, followup: Followup
    ) -> None:
        if live.held:
            followup.add.extend(held.message for held in live.held)
            live.held = []
        finish_reason = None if row.finish_reason is None else _FINISH_REASONS[row.finish_reason]
        stop_reason: str | int | None = None
        if new.stop is not None:
            if finish_reason is None:
                followup.abort.append(choice.core_id)
            finish_reason, stop_reason = "stop", new.stop
        elif finish_reason is not None:
            stop_reason = None if row.stop_token is None else choice.stop_reasons.get(row.stop_token)
            new.text += self._flush_text(choice)
            if isinstance(stop_reason, str) and live.params.include_stop_str_in_output:
                new.text += stop_reason
        live.sink(self._row_delta(live, choice, row, new.text, finish_reason, stop_reason))
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
            num_cached_tokens=row.num_cached_tokens,
            num_output_tokens=choice.num_output_tokens,
            prompt_logprobs=row.prompt_logprobs,
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

    def _new_texts(self, rows: Sequence[Row]) -> list[_NewText]:
        """One call of the detokenizer for all rows of the step."""
        shown = [self._shown_tokens(row) for row in rows]
        asked = [index for index, tokens in enumerate(shown) if tokens]
        new = [_NewText() for _ in rows]
        if not asked or self._detokenizer is None:
            return new
        choices = [self._live[rows[index].request_id][1] for index in asked]
        offsets = np.zeros(len(asked) + 1, np.int32)
        np.cumsum([len(shown[index]) for index in asked], out=offsets[1:])
        step = self._detokenizer.step(
            np.array([choice.slot for choice in choices], np.int32),
            np.array([token for index in asked for token in shown[index]], np.int32),
            offsets,
        )
        for index, choice, text, stop in zip(asked, choices, step.texts, step.stops.tolist(), strict=True):
            params = self._live[rows[index].request_id][0].params
            if choice.late_stops is not None:
                armed = choice.num_output_tokens + len(rows[index].tokens) >= params.min_tokens
                text, stop = choice.late_stops.push(text, armed=armed)
            new[index] = _NewText(text, params.stop_strings[stop] if stop >= 0 else None)
        return new

    def _shown_tokens(self, row: Row) -> list[int]:
        """The row's tokens that are to become text: not the stop token, unless it was asked for."""
        live, choice = self._live[row.request_id]
        if choice.slot is None or row.error is not None or live.params.max_tokens == 0:
            return []
        if row.stop_token is None or live.params.include_stop_str_in_output:
            return row.tokens
        return row.tokens[:-1]

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
