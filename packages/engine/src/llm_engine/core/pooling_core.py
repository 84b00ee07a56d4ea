"""Owns the loop of a core whose model gives vectors or scores: passes of several requests made one.

Knows nothing of sockets beyond `receive` and `send`, nor of text.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
from llm_models import ModelFiles, is_pooling, resolve
from numpy.typing import NDArray

from llm_engine.core.messages import (
    Abort,
    FromCore,
    PoolingReady,
    PoolResult,
    PoolTexts,
    Shutdown,
    StatsReply,
    StatsRequest,
    ToCore,
)
from llm_engine.core.pooling_client import PoolingClient
from llm_engine.core.startup import as_startup_errors, find_tokenizer, one_line
from llm_engine.errors import RequestFailed, StartupError, UnsupportedTask
from llm_engine.options import EngineOptions
from llm_engine.pooling import pass_tokens, score_activation
from llm_engine.stats import EngineStats
from llm_engine.worker.pooling_info import short_vectors


class MessagePort(Protocol):
    """The core's way to its front end."""

    def send(self, message: FromCore) -> None:
        """Queue a message to the front end."""
        ...

    def receive(self, wait_ms: int | None) -> list[ToCore]:
        """The messages that are here; None waits for the first."""
        ...


class PoolingCore:
    """A model that gives vectors or scores, and the passes that wait for it.

    Args:
        options: What to run.
        files: The model's.

    Raises:
        StartupError: The model could not be loaded.
        UnsupportedTask: Its config asks for an activation that is not done here.
    """

    def __init__(self, options: EngineOptions, files: ModelFiles) -> None:
        self._client = PoolingClient(options, files)
        info = self._client.pooling_info
        self.ready = PoolingReady(
            tokenizer_path=self._client.info.tokenizer_path,
            info=info,
            activation=score_activation(files.config, len(info.labels)),
            short_vectors=short_vectors(files.config),
        )
        self._max_tokens = pass_tokens(options, info)
        self._max_texts = options.max_num_seqs
        self._waiting: deque[PoolTexts] = deque()
        self._steps = self._tokens = self._failed = 0

    def serve(self, port: MessagePort) -> None:
        """Run until `Shutdown`: blocked when idle, else one pass after the other."""
        while True:
            for message in port.receive(0 if self._waiting else None):
                match message:
                    case PoolTexts():
                        self._waiting.append(message)
                    case Abort():
                        self._drop(message.request_ids)
                    case StatsRequest():
                        port.send(StatsReply(message.token, self._stats(), message.front))
                    case Shutdown():
                        self._client.shutdown()
                        return
            for result in self._step():
                port.send(result)

    def _drop(self, request_ids: Sequence[str]) -> None:
        gone = set(request_ids)
        self._waiting = deque(one for one in self._waiting if one.request_id not in gone)

    def _step(self) -> list[PoolResult]:
        """Run the oldest request, and those after it that fit into the same pass."""
        batch = self._take()
        if not batch:
            return []
        try:
            return self._run(batch)
        except RequestFailed as error:
            if len(batch) == 1:
                self._failed += 1
                return [PoolResult(request_id=batch[0].request_id, error=str(error))]
        # One of them is at fault: the others must not fail with it.
        results = []
        for one in batch:
            try:
                results += self._run([one])
            except RequestFailed as error:
                self._failed += 1
                results.append(PoolResult(request_id=one.request_id, error=str(error)))
        return results

    def _take(self) -> list[PoolTexts]:
        batch: list[PoolTexts] = []
        texts = tokens = 0
        while self._waiting:
            one = self._waiting[0]
            size = sum(map(len, one.texts)) // 4
            if batch and (
                (one.normalize, one.per_token) != (batch[0].normalize, batch[0].per_token)
                or texts + len(one.texts) > self._max_texts
                or tokens + size > self._max_tokens
            ):
                break
            batch.append(self._waiting.popleft())
            texts, tokens = texts + len(one.texts), tokens + size
        return batch

    def _run(self, batch: Sequence[PoolTexts]) -> list[PoolResult]:
        texts = [_numbers(text) for one in batch for text in one.texts]
        types = None
        if any(one.token_types is not None for one in batch):
            types = [
                _numbers(row)
                for one in batch
                for row in (
                    [bytes(len(text)) for text in one.texts] if one.token_types is None else one.token_types
                )
            ]
        how = batch[0].normalize, batch[0].per_token
        arrays = cast("list[NDArray[np.float32]]", self._client.call("pool", texts, types, *how))
        self._steps += 1
        self._tokens += sum(map(len, texts))
        results = []
        first = 0
        for one in batch:
            own = arrays[first : first + len(one.texts)]
            first += len(one.texts)
            results.append(
                PoolResult(
                    request_id=one.request_id,
                    shapes=[list(array.shape) for array in own],
                    arrays=[array.astype("<f4", copy=False).tobytes() for array in own],
                )
            )
        return results

    def _stats(self) -> EngineStats:
        return EngineStats(
            waiting=len(self._waiting),
            steps=self._steps,
            scheduled_tokens=self._tokens,
            failed_steps=self._failed,
        )


def start_pooling_core(options: EngineOptions, on_found: Callable[[str | None], None]) -> PoolingCore | None:
    """A core with the model of `options` if it gives vectors or scores; None if it generates text.

    Args:
        options: What to run.
        on_found: Called with the tokenizer's path (None: the model has none) before the weights are read.

    Raises:
        StartupError: The model could not be found or loaded; one line says why.
    """
    if options.model.endswith(".gguf"):
        return None  # such files hold models that generate
    with as_startup_errors():
        files = resolve(options.model, offline=options.offline, allow_pickle=options.allow_pickle)
        if not is_pooling(files):
            return None
        _, path = find_tokenizer(options, files)
        on_found(path)
        try:
            return PoolingCore(options, files)
        except UnsupportedTask as error:
            raise StartupError(type(error).__name__, one_line(error)) from error


def _numbers(data: bytes) -> list[int]:
    return cast("list[int]", np.frombuffer(data, dtype="<i4").tolist())
