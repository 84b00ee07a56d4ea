"""One HTTP request's work in the engine: prompts, choices, usage. Knows nothing of answer formats."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
from llm_engine.errors import InvalidRequest
from llm_engine.outputs import RequestDelta
from llm_engine.sampling_params import SamplingParams

from llm_stack_server.cache_use import CacheUse
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import InvalidField, Unavailable
from llm_stack_server.jobs import Job
from llm_stack_server.merge import merge
from llm_stack_server.thinking_budget import within_budget


@dataclass(slots=True)
class Usage:
    """Tokens of a whole HTTP request; prompts count once, however many choices they have."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    pinned_tokens: tuple[int, ...] = ()  # by pin of the request; messages have one prompt
    reasoning_tokens: int = 0

    def since(self, before: Usage) -> Usage:
        """What was added to ``before``."""
        return Usage(
            prompt_tokens=self.prompt_tokens - before.prompt_tokens,
            completion_tokens=self.completion_tokens - before.completion_tokens,
            cached_tokens=self.cached_tokens - before.cached_tokens,
            reasoning_tokens=self.reasoning_tokens - before.reasoning_tokens,
        )

    def as_json(self) -> dict[str, object]:
        """OpenAI's ``usage`` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


class Observer(Protocol):
    """Who measures the generation."""

    def admitted(self) -> None:
        """The request was let in. Called at most once."""
        ...

    def begun(self, queue_s: float) -> None:
        """The first step of a prompt came, after so many seconds in the engine's queue."""
        ...

    def tokens(self, choice: int, count: int) -> None:
        """``count`` new tokens of a choice arrived."""
        ...

    def choice_finished(self, reason: str) -> None:
        """A choice ended."""
        ...

    def finished(self, outcome: str, usage: Usage) -> None:
        """The generation ended: a finish reason, "abort" or "error". Called exactly once.

        ``usage`` counts this generation's tokens alone.
        """
        ...


class Admission(Protocol):
    """Who lets the generation in, and counts what it takes."""

    async def enter(self, size: int, num_tokens: int) -> None:
        """Wait for a place for ``size`` sequences over prompts of ``num_tokens`` in all.

        Raises:
            Overloaded: there is none, and nothing is held.
        """
        ...

    def spend(self, num_tokens: int) -> None:
        """So many tokens were generated."""
        ...

    def leave(self) -> None:
        """Give the place back. Called exactly once after `enter` returned."""
        ...


class Unlimited:
    """Lets all in."""

    async def enter(self, size: int, num_tokens: int) -> None:
        """Do nothing."""

    def spend(self, num_tokens: int) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


class ChoiceDelta(msgspec.Struct, frozen=True):
    """A delta of the engine with its place in the answer.

    Attributes:
        choice: Index of the choice in the answer: prompt index times ``n`` plus the engine's index.
        prompt: Index of the prompt.
        delta: What is new.
    """

    choice: int
    prompt: int
    delta: RequestDelta


@dataclass(slots=True)
class Generation:
    """Runs ``jobs`` side by side. Iterate `deltas` once; await `start` before to learn of a refusal."""

    engine: Engine
    request_id: str
    jobs: Sequence[Job]
    observer: Observer
    priority: int = 0
    usage: Usage = field(default_factory=Usage)
    grammar_field: str | None = None  # where the client said what the answer must look like
    admission: Admission = field(default_factory=Unlimited)
    cache: CacheUse = field(default_factory=CacheUse)
    _events: AsyncGenerator[ChoiceDelta, None] | None = None
    _first: ChoiceDelta | None = None

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together."""
        return sum(job.params.n for job in self.jobs)

    async def start(self) -> None:
        """Wait for the first delta, so that a refusal can still become an HTTP status."""
        self._events = self._run()
        self._first = await anext(self._events, None)

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """All deltas, in order of arrival. Leaving early aborts what still runs."""
        if self._events is None:
            await self.start()
        events = self._events
        assert events is not None
        try:
            if self._first is not None:
                yield self._first
                async for event in events:
                    yield event
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Abort what still runs. Harmless when nothing does."""
        if self._events is not None:
            await self._events.aclose()

    async def _run(self) -> AsyncGenerator[ChoiceDelta, None]:
        outcome = "abort"
        seen: set[int] = set()
        before = replace(self.usage)  # of generations before this one, of the same request
        is_in = False
        merged: AsyncGenerator[tuple[int, RequestDelta], None] | None = None
        try:
            await self.admission.enter(self.num_choices, sum(len(job.prompt.token_ids) for job in self.jobs))
            is_in = True
            self.observer.admitted()
            merged = merge([self._submit(index, job) for index, job in enumerate(self.jobs)])
            async for index, delta in merged:
                event = ChoiceDelta(index * self.jobs[index].params.n + delta.index, index, delta)
                self._count(event, seen)
                if delta.finish_reason == "abort":
                    raise Unavailable("the request was aborted by the server", code="aborted")
                reason = delta.finish_reason
                if reason is not None:
                    self.observer.choice_finished(reason)
                yield event
                outcome = reason or outcome
        except InvalidRequest as error:
            outcome = "error"
            if error.field != "grammar" or self.grammar_field is None:
                raise
            raise InvalidField(self.grammar_field, f"{self.grammar_field}: {error.message}") from None
        except Exception:
            outcome = "error"
            raise
        except BaseException:
            outcome = "abort"
            raise
        finally:
            try:
                if merged is not None:
                    await merged.aclose()
            finally:
                if is_in:
                    self.admission.leave()
            self.observer.finished(outcome, self.usage.since(before))

    def _submit(self, index: int, job: Job) -> AsyncIterator[RequestDelta]:
        request_id = self.request_id if len(self.jobs) == 1 else f"{self.request_id}-{index}"

        def submit(prompt: list[int], params: SamplingParams, *, first: bool) -> AsyncIterator[RequestDelta]:
            return self.engine.generate(
                prompt,
                params,
                request_id=request_id,
                priority=self.priority,
                tenant=self.cache.tenant,
                cache_salt=self.cache.salt,
                cache_pins=self.cache.pins if first else (),
            )

        if job.thinking is None:
            return submit(job.prompt.token_ids, job.params, first=True)
        return within_budget(
            submit,
            self.engine.tokenizer,
            job.prompt.token_ids,
            job.params,
            job.thinking,
            self.engine.max_model_len,
        )

    def _count(self, event: ChoiceDelta, seen: set[int]) -> None:
        delta = event.delta
        if event.prompt not in seen:
            seen.add(event.prompt)
            self.observer.begun(delta.queue_s)
            self.usage.prompt_tokens += delta.num_prompt_tokens
            self.usage.cached_tokens += delta.num_cached_tokens
            self.usage.pinned_tokens = delta.pinned_tokens or self.usage.pinned_tokens
        new_tokens = len(delta.token_ids)
        self.usage.completion_tokens += new_tokens
        if new_tokens:
            self.observer.tokens(event.choice, new_tokens)
            self.admission.spend(new_tokens)
