"""Captures a function of device work as a CUDA graph; knows nothing of what it computes."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph and its result.

    Attributes:
        replay: Queues the work on the current stream.
        output: What the function returned, overwritten by every replay.
        num_bytes: Device memory that the capture took, as far as the driver tells.
    """

    replay: Callable[[], None]
    output: Tensor
    num_bytes: int


class GraphCapture:
    """Captures one function after the other into one memory pool.

    The graphs share memory because they run one after the other on one stream, and what is read from a
    replay is read by work queued before the next.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> Captured:
        """Captures a function whose kernels have all run before: nothing runs here.

        Call it in inference mode, on the thread that will replay.

        Raises:
            Exception: Whatever the function raises, or the driver where it cannot be captured; the stream
                and the allocator are as before then.
        """
        current = torch.cuda.current_stream(self._device)
        free_before, _ = torch.cuda.mem_get_info(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _no_garbage_collection():
                graph, output = self._record(function)
        finally:
            current.wait_stream(self._stream)
        free_after, _ = torch.cuda.mem_get_info(self._device)
        return Captured(graph.replay, output, max(free_before - free_after, 0))

    def _record(self, function: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Not `torch.cuda.graph`: it waits for the device and empties the caches, and leaves its stream
        # current when the capture fails. Other threads may use CUDA meanwhile, hence "thread_local".
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            output = function()
            graph.capture_end()
        except BaseException:
            self._abandon(graph)
            raise
        return graph, output

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, so that stream and allocator are as before it."""
        try:
            graph.capture_end()
        except RuntimeError:
            # It says again that the capture failed, and then torch's allocator still believes in it.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
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
