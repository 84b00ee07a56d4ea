"""Captures decode steps as CUDA graphs and replays them; knows nothing of plans, sampling or requests.

A graph saves the host's launches: a small model's decode step is hundreds of kernels that the device runs
faster than the host can launch them. A size is captured when it is first needed. A capture that fails is
remembered, and such steps run kernel by kernel.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_engine.worker.decode_step import WORDS_PER_ROW, DecodeStep
from llm_engine.worker.graph_buckets import GraphBuckets, GraphKey

_LOG = logging.getLogger(__name__)
# What fails again and again is not worth the pauses of further trials.
_MAX_FAILURES = 3


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    hidden: Tensor


class DecodeGraphs:
    """The graphs of one model runner, over one input buffer and one memory pool.

    The graphs share memory because they run one after the other on one stream, and what is read from a
    replay is read by work queued before the next.

    Args:
        step: What to capture.
        buckets: The sizes.
        device: A CUDA device.
    """

    def __init__(self, step: DecodeStep, buckets: GraphBuckets, device: torch.device) -> None:
        self._step = step
        self._buckets = buckets
        self._device = device
        self._input = torch.zeros(WORDS_PER_ROW * buckets.rows[-1], dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[GraphKey, _Captured | None] = {}
        self._num_failures = 0

    def prepare(self, num_rows: int, max_context_len: int) -> GraphKey | None:
        """The key of a graph that can run such a step, captured now if it is new.

        Call it in inference mode, on the thread and the stream that will replay.

        Returns:
            None where the step must run without a graph.
        """
        key = self._buckets.choose(num_rows, max_context_len)
        if key is None:
            return None
        if key not in self._captured:
            if self._num_failures >= _MAX_FAILURES:
                return None
            self._captured[key] = self._try_capture(key)
        return None if self._captured[key] is None else key

    def replay(self, key: GraphKey, packed: Tensor) -> Tensor:
        """Queues the step on the current stream.

        Args:
            key: From `prepare`.
            packed: int64[2 * key.rows] on the device, as `pack_rows` makes it.

        Returns:
            Hidden states [key.rows, hidden size], overwritten by the next replay: queue what reads them
            before that.
        """
        captured = self._captured[key]
        if captured is None:
            raise KeyError(key)
        self._input[: len(packed)].copy_(packed)
        captured.graph.replay()
        return captured.hidden

    def _try_capture(self, key: GraphKey) -> _Captured | None:
        started_s = time.perf_counter()
        try:
            captured = self._capture(key)
        except Exception as error:  # noqa: BLE001 - whatever it is, the step can run without a graph
            self._num_failures += 1
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _LOG.warning("no graph for %d rows of %d tokens, running eagerly: %s", *key, reason)
            return None
        elapsed_ms = 1000 * (time.perf_counter() - started_s)
        _LOG.info("captured the decode of %d rows of up to %d tokens in %.0f ms", *key, elapsed_ms)
        return captured

    def _capture(self, key: GraphKey) -> _Captured:
        packed = self._input[: WORDS_PER_ROW * key.rows]
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _no_garbage_collection():
                # Padding rows only: they write nothing. Afterwards every kernel is compiled and loaded, and
                # the libraries have their handles and workspaces on this stream.
                packed.zero_()
                self._step.run(packed, key.context)
                return self._record(packed, key.context)
        finally:
            current.wait_stream(self._stream)

    def _record(self, packed: Tensor, max_context_len: int) -> _Captured:
        # Not `torch.cuda.graph`: it waits for the device and empties the caches, and leaves its stream
        # current when the capture fails. Other threads may use CUDA meanwhile, hence "thread_local".
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            hidden = self._step.run(packed, max_context_len)
            graph.capture_end()
        except BaseException:
            self._abandon(graph)
            raise
        return _Captured(graph, hidden)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, so that stream and allocator are as before it."""
        try:
            graph.capture_end()
        except RuntimeError:
            # It says again that the capture failed, and then torch's allocator still believes in it.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._input.device.index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keeps finalizers, which may call CUDA, out of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
