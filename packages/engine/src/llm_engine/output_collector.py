"""Owns the joining of a request's deltas into its whole output; knows nothing of where they come from."""

from dataclasses import dataclass, field

from llm_engine.errors import EngineError
from llm_engine.outputs import CompletionOutput, RequestDelta, RequestOutput, TokenLogprobs
from llm_engine.prompts import TokensPrompt


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    last: RequestDelta | None = None


class OutputCollector:
    """Takes a request's deltas and gives its `RequestOutput`.

    Args:
        request_id: The request.
        prompt: Its prompt.
        num_choices: How many answers it has.
    """

    def __init__(self, request_id: str, prompt: TokensPrompt, num_choices: int) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._choices = [_Choice() for _ in range(num_choices)]
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._num_cached_tokens = 0
        self._num_ended = 0
        self.error: EngineError | None = None
        """The error that ended the request, if one did."""

    @property
    def finished(self) -> bool:
        """Whether all choices have ended, or the request failed."""
        return self.error is not None or self._num_ended == len(self._choices)

    def put(self, item: RequestDelta | EngineError) -> None:
        """Take the next delta, or the error that ends the request."""
        if isinstance(item, EngineError):
            self.error = item
            return
        choice = self._choices[item.index]
        if item.text:
            choice.texts.append(item.text)
        choice.token_ids.extend(item.token_ids)
        if item.logprobs is not None:
            choice.logprobs = [*(choice.logprobs or ()), *item.logprobs]
        if item.index == 0:
            self._prompt_logprobs = item.prompt_logprobs or self._prompt_logprobs
            self._num_cached_tokens = max(self._num_cached_tokens, item.num_cached_tokens)
        if item.finish_reason is not None and (choice.last is None or choice.last.finish_reason is None):
            self._num_ended += 1
        choice.last = item

    def output(self) -> RequestOutput:
        """What the request has so far."""
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt.text,
            prompt_token_ids=tuple(self._prompt.token_ids),
            outputs=[self._completion(index, choice) for index, choice in enumerate(self._choices)],
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
            finished=self.finished,
        )

    def _completion(self, index: int, choice: _Choice) -> CompletionOutput:
        last = choice.last
        finish_reason = None if last is None else last.finish_reason
        failed = self.error is not None and finish_reason is None
        return CompletionOutput(
            index=index,
            text="".join(choice.texts),
            token_ids=tuple(choice.token_ids),
            logprobs=None if choice.logprobs is None else tuple(choice.logprobs),
            finish_reason="error" if failed else finish_reason,
            stop_reason=None if last is None else last.stop_reason,
            error=str(self.error) if failed else None,
        )
