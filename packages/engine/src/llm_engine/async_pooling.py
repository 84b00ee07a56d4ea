"""Owns the asynchronous front end of models that give vectors or scores; knows nothing of HTTP."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from llm_tokenizer import Tokenizer

from llm_engine.core.connected import ConnectedCore, connect_core, host_core
from llm_engine.core.core_state import CoreState, RestartPolicy
from llm_engine.core.messages import (
    Abort,
    FromCore,
    PoolingReady,
    PoolResult,
    PoolTexts,
    StatsReply,
    StatsRequest,
    request_id_of,
)
from llm_engine.early_requests import RETRY_AFTER_S
from llm_engine.errors import (
    EngineBusy,
    EngineDead,
    EngineRestarting,
    InvalidRequest,
    RequestFailed,
    StartupError,
    UnsupportedTask,
)
from llm_engine.options import EngineOptions
from llm_engine.outputs import RequestDelta
from llm_engine.pooling import Floats, Pooler, build_pooler
from llm_engine.pooling_outputs import ClassificationOutput, EmbeddingOutput, RewardOutput, ScoreOutput
from llm_engine.prompts import Prompt
from llm_engine.sampling_params import SamplingParams
from llm_engine.stats import EngineStats
from llm_engine.worker.pooling_info import PoolingInfo, ShortVectors

_THREADS = 32
"""Requests that encode or wait for their passes at the same time; further ones wait for a thread."""
_T = TypeVar("_T")


class _Cancelled(Exception):
    """Ends a request's thread whose caller has gone."""


class _Ticket:
    """A live request: what it waits for, and whether anybody still wants it."""

    def __init__(self) -> None:
        self.cancelled = False
        self.accepted = False  # its checks are over: a pass was sent
        self.running: Future[list[Floats]] | None = None

    def cancel(self) -> None:
        """Let the request end: its thread stops before its next pass, a waiting pass is taken back."""
        self.cancelled = True
        running = self.running
        if running is not None:
            running.cancel()


class AsyncPoolingLLM:
    """A running model that gives vectors or scores, for asyncio programs; `LLM` is the offline form.

    Texts of several callers go through the model together. Cancelling a call takes back what has not run.

    ```python
    engine = await AsyncPoolingLLM.start(EngineOptions(model="path/to/all-MiniLM-L6-v2"))
    (output,) = await engine.embed(["A man is eating food."])
    await engine.shutdown()
    ```
    """

    def __init__(self, options: EngineOptions, core: ConnectedCore, ready: PoolingReady) -> None:
        self._options = options
        self._core = core
        self._link = core.link
        self._tokenizer = core.tokenizer
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._pooler = build_pooler(
            ready.info,
            core.tokenizer,
            None if ready.tokenizer_path is None else Path(ready.tokenizer_path),
            options,
            partial(self._run_pass, _Ticket()),
            activation=ready.activation,
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pooling")
        self._live: set[_Ticket] = set()
        self._passes: dict[str, asyncio.Future[list[Floats]]] = {}
        self._messages: dict[str, PoolTexts] = {}
        self._stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._numbers = itertools.count()
        self._added = self._refused = 0
        self._ended: dict[str, int] = {"stop": 0, "abort": 0, "error": 0}
        self._prompt_tokens = 0
        self._death: EngineDead | None = None
        self._link.follow(self)

    @classmethod
    async def start(cls, options: EngineOptions, restart: RestartPolicy | None = None) -> Self:
        """Start a core process that is hosted here, and wait until its model is loaded.

        Args:
            options: What to run.
            restart: When to start the core again where it dies; passes are then run again. None: never.

        Raises:
            StartupError: The core could not start, or the model generates text.
        """
        return await cls._pooling(options, await host_core(options, restart))

    @classmethod
    async def connect(cls, folder: Path, options: EngineOptions, *, name: str = "front") -> Self:
        """Become a front end of a core that a `CoreHost` runs, see `AsyncLLM.connect`.

        Raises:
            StartupError: No host is there, its core could not start, or the model generates text.
        """
        return await cls._pooling(options, await connect_core(folder, name))

    @classmethod
    async def _pooling(cls, options: EngineOptions, core: ConnectedCore) -> Self:
        if not isinstance(core.ready, PoolingReady):
            await core.close()
            raise StartupError("UnsupportedTask", "the model generates text: use AsyncLLM")
        return cls(options, core, core.ready)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            InvalidRequest: The model has none.
        """
        if self._tokenizer is None:
            raise InvalidRequest("prompt", "must be token ids: the model has no tokenizer")
        return self._tokenizer

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What any engine has; nothing here reads it."""
        return SamplingParams()

    @property
    def info(self) -> PoolingInfo:
        """What the model is like."""
        return self._ready.info

    @property
    def short_vectors(self) -> ShortVectors:
        """Which lengths below the whole one the model says it was trained for."""
        return self._ready.short_vectors

    @property
    def max_model_len(self) -> int:
        """Longest text in tokens."""
        return self._pooler.encoder.max_tokens

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._ready.info.vocab_size

    @property
    def model_name(self) -> str:
        """The model's name: its alias, or the last part of its path."""
        return Path(self._options.model).stem if "/" in self._options.model else self._options.model

    @property
    def core_pid(self) -> int:
        """The core's process id.

        Raises:
            EngineDead, EngineRestarting: None runs now.
        """
        pid = self._link.state.pid
        if pid is None:
            self._check_alive()
            raise EngineRestarting(RETRY_AFTER_S)
        return pid

    @property
    def state(self) -> CoreState:
        """Where the core is in its life; true some milliseconds after each change."""
        return self._link.state

    async def embed(
        self,
        texts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: int | None = None,
        per_token: bool = False,
    ) -> list[EmbeddingOutput]:
        """As `LLM.embed`.

        Raises:
            InvalidRequest: A text or an argument was refused; nothing was run.
            UnsupportedTask: The model gives scores.
            EngineBusy: Too many requests wait.
            EngineDead: The core is not running any more.
            RequestFailed: The model failed on a pass of this request.
        """
        return await self._request(
            lambda pooler: pooler.embed(
                texts,
                dimensions=dimensions,
                normalize=normalize,
                truncate=truncate,
                per_token=per_token,
                progress=False,
            )
        )

    async def score(
        self, pairs: Sequence[tuple[Prompt, Prompt]], *, truncate: int | None = None
    ) -> list[ScoreOutput]:
        """As `LLM.score`, of pairs (query, text). Raises as `embed`."""
        return await self._request(lambda pooler: pooler.score(pairs, truncate=truncate, progress=False))

    async def classify(
        self, texts: Sequence[Prompt], *, truncate: int | None = None
    ) -> list[ClassificationOutput]:
        """As `LLM.classify`. Raises as `embed`."""
        return await self._request(lambda pooler: pooler.classify(texts, truncate=truncate, progress=False))

    async def reward(self, texts: Sequence[Prompt], *, truncate: int | None = None) -> list[RewardOutput]:
        """As `LLM.reward`. Raises as `embed`."""
        return await self._request(lambda pooler: pooler.reward(texts, truncate=truncate, progress=False))

    def generate(
        self,
        prompt: Prompt,  # noqa: ARG002 - the shape of `AsyncLLM.generate`
        params: SamplingParams,  # noqa: ARG002
        **_options: object,
    ) -> AsyncIterator[RequestDelta]:
        """Refuse: these models write nothing.

        Raises:
            UnsupportedTask: Always; the message says what to call.
        """
        does = "classify, score or reward" if self._ready.info.labels else "embed or score"
        raise UnsupportedTask("generate", f"it gives vectors or scores of texts, not text: call {does}")

    async def stats(self) -> EngineStats:
        """A snapshot of the core, taken between two of its passes; requests are counted here.

        Raises:
            EngineDead: The core is not running any more.
        """
        token = next(self._numbers)
        future: asyncio.Future[EngineStats] = self._loop.create_future()
        self._stats[token] = future
        try:
            self._check_alive()
            self._link.send(StatsRequest(token, front=self._link.front))
            core = await future
        finally:
            self._stats.pop(token, None)
        return replace(
            core,
            running=len(self._live),
            requests_added=self._added,
            requests_refused=self._refused,
            requests_finished=dict(self._ended),
            prompt_tokens=self._prompt_tokens,
        )

    def is_healthy(self) -> bool:
        """Whether the core runs."""
        return self._link.state.phase == "running"

    async def shutdown(self) -> None:
        """Part from the core, and end it where it is hosted here; live requests raise `EngineDead`.

        Safe to call twice.
        """
        self.core_dead(EngineDead("the engine was shut down"))
        await self._core.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Requests

    async def _request(self, work: Callable[[Pooler], list[_T]]) -> list[_T]:
        """Do `work` in a thread; its passes come back to this loop."""
        self._check_alive()
        if len(self._live) >= self._options.max_waiting_requests:
            raise EngineBusy(1.0)
        ticket = _Ticket()
        pooler = replace(self._pooler, run=partial(self._run_pass, ticket))
        self._live.add(ticket)
        outcome = "error"
        try:
            outputs = await self._loop.run_in_executor(self._threads, work, pooler)
            outcome = "stop"
            self._prompt_tokens += sum(getattr(one, "num_prompt_tokens", 0) for one in outputs)
            return outputs
        except asyncio.CancelledError:
            outcome = "abort"
            raise
        finally:
            ticket.cancel()
            self._live.discard(ticket)
            if ticket.accepted:
                self._ended[outcome] += 1
            else:
                self._refused += 1

    def _run_pass(
        self,
        ticket: _Ticket,
        texts: list[list[int]],
        token_types: list[list[int]] | None,
        normalize: bool | None,
        per_token: bool,
    ) -> list[Floats]:
        """In a request's thread: one pass, with passes of others where they fit."""
        message = PoolTexts(
            request_id=request_id_of(self._link.front, next(self._numbers)),
            texts=[_packed(text) for text in texts],
            token_types=None if token_types is None else [_packed(row) for row in token_types],
            normalize=normalize,
            per_token=per_token,
        )
        ticket.running = asyncio.run_coroutine_threadsafe(self._pass(ticket, message), self._loop)
        if ticket.cancelled:  # it may have come between the two
            ticket.running.cancel()
            raise _Cancelled
        return ticket.running.result()

    async def _pass(self, ticket: _Ticket, message: PoolTexts) -> list[Floats]:
        self._check_alive()
        self._added += not ticket.accepted
        ticket.accepted = True
        future: asyncio.Future[list[Floats]] = self._loop.create_future()
        self._passes[message.request_id] = future
        self._messages[message.request_id] = message
        try:
            with contextlib.suppress(EngineRestarting):  # the next core is told
                self._link.send(message)
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineDead, EngineRestarting):
                self._link.send(Abort([message.request_id]))
            raise
        finally:
            self._passes.pop(message.request_id, None)
            self._messages.pop(message.request_id, None)

    # What the link tells

    def take(self, message: FromCore) -> None:
        """The core says something."""
        if isinstance(message, PoolResult):
            future = self._passes.get(message.request_id)
            if future is None or future.done():
                return
            if message.error is not None:
                future.set_exception(RequestFailed(message.error))
                return
            future.set_result(
                [
                    np.frombuffer(data, dtype="<f4").reshape(shape)
                    for data, shape in zip(message.arrays, message.shapes, strict=True)
                ]
            )
        elif isinstance(message, StatsReply):
            waiting = self._stats.get(message.token)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.stats)

    def core_up(self, ended: dict[str, str]) -> None:  # noqa: ARG002 - passes are not judged
        """A new core is ready: passes that are not over are run again."""
        for message in list(self._messages.values()):
            self._link.send(message)

    def core_down(self) -> None:
        """The core has died and another is being started."""
        for future in self._stats.values():
            if not future.done():
                future.set_exception(EngineRestarting(RETRY_AFTER_S))

    def core_dead(self, death: EngineDead) -> None:
        """There is no core any more: tell everyone who waits."""
        if self._death is not None:
            return
        self._death = death
        waiting: list[asyncio.Future[Any]] = [*self._passes.values(), *self._stats.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(EngineDead(str(death)))

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDead(str(self._death))


def _packed(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, dtype="<i4").tobytes()
