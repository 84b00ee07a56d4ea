"""Owns the asynchronous front end: requests to a core process, deltas back; knows nothing of HTTP."""

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from llm_tokenizer import Tokenizer

from llm_engine.cache_pins import CachePin
from llm_engine.core.connected import ConnectedCore, connect_core, host_core
from llm_engine.core.core_state import CoreState, RestartPolicy
from llm_engine.core.messages import Abort, CoreInfo, FromCore, StatsReply, StatsRequest, StepOutputs
from llm_engine.early_requests import RETRY_AFTER_S, EarlyRequests
from llm_engine.errors import EngineBusy, EngineDead, EngineRestarting, InvalidRequest, StartupError
from llm_engine.live_requests import LiveRequest
from llm_engine.mailbox import Mailbox
from llm_engine.options import EngineOptions
from llm_engine.output_processor import OutputProcessor
from llm_engine.outputs import RequestDelta
from llm_engine.prompts import Conversation, Prompt, TokensPrompt, chat_to_tokens, to_tokens
from llm_engine.request_builder import RequestBuilder
from llm_engine.sampling_params import SamplingParams
from llm_engine.start_profile import StartProfile, StartRecorder, build_profile, now_s
from llm_engine.stats import EngineStats

_LOG = logging.getLogger(__name__)
_ENCODE_THREADS = 4
_T = TypeVar("_T")


def _profile_of(begun_s: float, info: CoreInfo) -> StartProfile:
    """The phases of this process, and within them those of the core's."""
    recorder = StartRecorder()
    recorder.add_process(begun_s)
    recorder.add("core process", begun_s, now_s())
    recorder.extend(info.start_spans, begun_s)
    return build_profile(recorder.spans)


class AsyncLLM:
    """A running engine for asyncio programs, made by `AsyncLLM.start` for the loop it is called in.

    ```python
    engine = await AsyncLLM.start(EngineOptions(model="smollm2"))
    async for delta in engine.generate("The capital of France is", SamplingParams(max_tokens=8)):
        print(delta.text, end="")
    await engine.shutdown()
    ```
    """

    def __init__(
        self,
        options: EngineOptions,
        core: ConnectedCore,
        info: CoreInfo,
        start_profile: StartProfile,
    ) -> None:
        self._options = options
        self._core = core
        self._link = core.link
        self._tokenizer = tokenizer = core.tokenizer
        self._info = info
        self._start_profile = start_profile
        self._builder = RequestBuilder(
            tokenizer, info, options.seed, one_seed=options.deterministic, front=core.link.front
        )
        self._processor = OutputProcessor(tokenizer, info.block_size if info.prefix_caching else None)
        self._by_request_id: dict[str, set[LiveRequest]] = {}
        self._stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._stats_tokens = itertools.count()
        self._pool = ThreadPoolExecutor(
            min(_ENCODE_THREADS, os.cpu_count() or 1), thread_name_prefix="encode"
        )
        self._death: EngineDead | None = None
        self._draining = False
        self._drained = asyncio.Event()
        self._early = EarlyRequests(options)
        self._link.follow(self)

    @classmethod
    async def start(cls, options: EngineOptions, restart: RestartPolicy | None = None) -> Self:
        """Start a core process that is hosted here, and wait until its model is loaded.

        Args:
            options: What to run.
            restart: When to start the core again where it dies; requests then go on. None: never.

        Raises:
            StartupError: The core could not start, or the model gives no text; one line says why.
        """
        return await cls._generating(options, await host_core(options, restart))

    @classmethod
    async def connect(cls, folder: Path, options: EngineOptions, *, name: str = "front") -> Self:
        """Become a front end of a core that a `CoreHost` runs, in this or another process.

        Args:
            folder: The host's.
            options: Those of the core.
            name: Whose front end it is. One that connects later by the same name takes its place: the
                requests of the earlier end.

        Raises:
            StartupError: No host is there, its core could not start, or the model gives no text.
        """
        return await cls._generating(options, await connect_core(folder, name))

    @classmethod
    async def _generating(cls, options: EngineOptions, core: ConnectedCore) -> Self:
        if not isinstance(core.ready, CoreInfo):
            await core.close()
            raise StartupError(
                "UnsupportedTask", "the model gives vectors or scores, not text: use AsyncPoolingLLM"
            )
        return cls.over(options, core, core.ready)

    @classmethod
    def over(cls, options: EngineOptions, core: ConnectedCore, info: CoreInfo) -> Self:
        """The front end of a core that is ready; `info` is what it told."""
        profile = _profile_of(core.begun_s, info)
        if options.profile_start:
            sys.stderr.write(profile.table() + "\n")
        return cls(options, core, info, profile)

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
    def start_profile(self) -> StartProfile:
        """Where the seconds went from the start of this process until the engine was ready."""
        return self._start_profile

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds where a caller states no parameters: the defaults of the model's author."""
        return SamplingParams(**self._info.sampling_defaults)  # type: ignore[arg-type]

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens."""
        return self._info.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._info.vocab_size

    @property
    def model_name(self) -> str:
        """The model's name: its alias, or the last part of its path."""
        return Path(self._options.model).stem if "/" in self._options.model else self._options.model

    @property
    def info(self) -> CoreInfo:
        """What the core told of the model, the device and the cache."""
        return self._info

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

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        cache_salt: bytes | None = None,
        cache_pins: Sequence[CachePin] = (),
    ) -> AsyncGenerator[RequestDelta, None]:
        """Generate; closing the iterator (or cancelling its task) aborts the request.

        Args:
            prompt: Text, or token ids.
            params: How to generate.
            request_id: For the caller's own use, need not be unique; made up when None.
            priority: Lower runs first, under the `priority` policy.
            tenant: Whose request it is, for the `fair` policy.
            cache_salt: Only requests with the same salt share cached prefixes.
            cache_pins: Beginnings of the prompt to keep in the prefix cache for a time; the first delta tells
                what was kept.

        Yields:
            Deltas of all choices, the last of each with a finish reason.

        Raises:
            InvalidRequest: Refused before it was queued; the field is named.
            EngineBusy: The queue is full, or the engine is draining.
            EngineRestarting: The core is being started again, and too many requests wait for it. Otherwise a
                request waits for it, and those that ran go on.
            EngineDead: The core is not running any more.
            RequestFailed: The request ended with an error, or the core died of it; others go on.
        """
        self._check_accepting()
        tokens = await self._to_tokens(prompt)
        mailbox = Mailbox(params.n if isinstance(params, SamplingParams) else 1)
        live = self._builder.build(
            tokens,
            params,
            request_id or f"req-{uuid.uuid4().hex}",
            priority,
            mailbox.put,
            tenant=tenant,
            cache_salt=cache_salt,
            cache_pins=cache_pins,
        )
        self._check_accepting()
        try:
            self._open(live)
            while (delta := await mailbox.get()) is not None:
                yield delta
        finally:
            self._close(live)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, made in a thread."""
        tokenizer = self.tokenizer
        return await self._in_pool(lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))

    async def encode_chat(self, messages: Conversation, **template_options: object) -> TokensPrompt:
        """Render and encode a conversation in a thread, see `llm_engine.prompts.chat_to_tokens`."""
        tokenizer = self.tokenizer
        return await self._in_pool(lambda: chat_to_tokens(tokenizer, messages, **template_options))

    async def abort(self, request_id: str) -> bool:
        """End the live requests of this id with finish reason "abort"; False when there is none."""
        lives = self._by_request_id.get(request_id, set())
        for live in lives:
            self._tell_abort(self._processor.abort(live))
        return bool(lives)

    async def stats(self, *, check_cache: bool = False) -> EngineStats:
        """A snapshot of the core, taken between two of its steps.

        Args:
            check_cache: Check every invariant of the KV cache before, in time linear in its blocks. A state
                that contradicts itself ends the core.

        Raises:
            EngineRestarting: The core is being started again.
            EngineDead: The core is not running any more.
        """
        token = next(self._stats_tokens)
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats[token] = future
        try:
            self._check_alive()
            self._link.send(StatsRequest(token, check_cache, self._link.front))
            return await future
        finally:
            self._stats.pop(token, None)

    def is_healthy(self) -> bool:
        """Whether the core runs; that its loop turns, `stats` with a time limit proves."""
        return self._link.state.phase == "running"

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the live ones.

        Returns:
            True when all have ended, False when the time was up first (they go on).
        """
        self._draining = True
        if self._by_request_id:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._drained.wait()
        return not self._by_request_id

    async def shutdown(self) -> None:
        """Part from the core, and end it where it is hosted here; live requests raise `EngineDead`.

        Safe to call twice.
        """
        self.core_dead(EngineDead("the engine was shut down"))
        await self._core.close()
        self._pool.shutdown(wait=False)

    # Requests

    async def _to_tokens(self, prompt: Prompt) -> TokensPrompt:
        if isinstance(prompt, str):
            tokenizer = self.tokenizer
            return await self._in_pool(lambda: to_tokens(tokenizer, prompt))
        return to_tokens(self._tokenizer, prompt)

    async def _in_pool(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _open(self, live: LiveRequest) -> None:
        if self._link.is_up:
            for message in self._processor.open(live):
                self._link.send(message)
        else:
            self._early.add(live)
            self._processor.open(live)  # the next core is told
        self._by_request_id.setdefault(live.request_id, set()).add(live)

    def _close(self, live: LiveRequest) -> None:
        self._tell_abort(self._processor.close(live))
        self._early.discard(live)
        lives = self._by_request_id.get(live.request_id, set())
        lives.discard(live)
        if not lives:
            self._by_request_id.pop(live.request_id, None)
        if not self._by_request_id:
            self._drained.set()

    def _tell_abort(self, core_ids: Sequence[str]) -> None:
        if core_ids:
            with contextlib.suppress(EngineDead, EngineRestarting):  # then the next core is not told of them
                self._link.send(Abort(list(core_ids)))

    # What the link tells

    def take(self, message: FromCore) -> None:
        """The core says something."""
        if isinstance(message, StepOutputs):
            followup = self._processor.process(message)
            for addition in followup.add:
                with contextlib.suppress(EngineDead, EngineRestarting):  # it is live: the next core is told
                    self._link.send(addition)
            self._tell_abort(followup.abort)
        elif isinstance(message, StatsReply) and message.token in self._stats:
            future = self._stats.pop(message.token)
            if not future.done():
                future.set_result(message.stats)

    def core_up(self, ended: dict[str, str]) -> None:
        """A new core is ready: requests go on in it."""
        self._early.clear()
        for message in self._processor.resume(ended):
            self._link.send(message)

    def core_down(self) -> None:
        """The core has died and another is being started."""
        self._fail_stats(EngineRestarting(RETRY_AFTER_S))

    def core_dead(self, death: EngineDead) -> None:
        """There is no core any more: tell everyone who waits."""
        if self._death is not None:
            return
        self._death = death
        self._processor.fail_all(death)
        self._fail_stats(death)

    def _fail_stats(self, error: EngineDead | EngineRestarting) -> None:
        for future in self._stats.values():
            if not future.done():
                future.set_exception(error)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDead(str(self._death))

    def _check_accepting(self) -> None:
        self._check_alive()
        if self._draining:
            raise EngineBusy(1.0, "the engine is shutting down")
