"""Captures a function of device work as one CUDA graph or several; knows nothing of what it computes."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, or its pieces, and the result.

    Attributes:
        replay: Queues the work on the current stream.
        output: What the function returned, overwritten by every replay.
        num_bytes: Device memory that the capture took, as far as the driver tells.
    """

    replay: Callable[[], None]
    output: Tensor
    num_bytes: int


class Capture(Protocol):
    """Makes graphs of functions."""

    def __call__(self, function: Callable[[], Tensor]) -> Captured:
        """Captures a function whose kernels have all run before: nothing runs here.

        Raises:
            Exception: It cannot be captured; everything is as before then.
        """
        ...

    def apart(self, call: Callable[[], None]) -> None:
        """What a captured function must give its attention to."""
        ...

    def weaken(self) -> bool:
        """Goes over to pieces, after a failure; False where that was so already or is not wanted."""
        ...


class GraphCapture:
    """Captures one function after the other into one memory pool.

    The graphs share memory because they run one after the other on one stream, and what is read from a
    replay is read by work queued before the next.

    In pieces, the graph is broken at each attention, which every replay runs anew between the pieces, on the
    tensors that were there at the capture: they are kept.

    Args:
        device: A CUDA device.
        kind: "full", "piecewise", or "auto": whole until a capture fails, then in pieces.
    """

    def __init__(self, device: torch.device, kind: str = "auto") -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._in_pieces = kind == "piecewise"
        self._may_weaken = kind == "auto"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pieces: list[Callable[[], None]] = []

    def __call__(self, function: Callable[[], Tensor]) -> Captured:
        """As `Capture`; in inference mode, on the thread that will replay."""
        current = torch.cuda.current_stream(self._device)
        free_before, _ = torch.cuda.mem_get_info(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), _no_garbage_collection():
                pieces, output = self._record(function)
        finally:
            current.wait_stream(self._stream)
        free_after, _ = torch.cuda.mem_get_info(self._device)
        replay = pieces[0] if len(pieces) == 1 else partial(_run_all, pieces)
        return Captured(replay, output, max(free_before - free_after, 0))

    def apart(self, call: Callable[[], None]) -> None:
        """As `Capture`."""
        if self._graph is None or not self._in_pieces:
            call()
            return
        self._end_piece()
        self._pieces.append(call)
        self._begin_piece()

    def weaken(self) -> bool:
        """As `Capture`."""
        weakens, self._may_weaken = self._may_weaken, False
        self._in_pieces |= weakens
        return weakens

    def _record(self, function: Callable[[], Tensor]) -> tuple[list[Callable[[], None]], Tensor]:
        self._pieces = []
        self._begin_piece()
        try:
            output = function()
            self._end_piece()
        except BaseException:
            self._abandon()
            raise
        pieces, self._pieces = self._pieces, []
        return pieces, output

    def _begin_piece(self) -> None:
        # Not `torch.cuda.graph`: it waits for the device and empties the caches, and leaves its stream
        # current when the capture fails. Other threads may use CUDA meanwhile, hence "thread_local".
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._graph = graph

    def _end_piece(self) -> None:
        assert self._graph is not None
        self._graph.capture_end()
        self._pieces.append(self._graph.replay)
        self._graph = None

    def _abandon(self) -> None:
        """Ends a capture that failed, so that stream and allocator are as before it."""
        graph, self._graph, self._pieces = self._graph, None, []
        if graph is not None:
            try:
                graph.capture_end()
            except RuntimeError:
                # It says again that the capture failed, and then torch's allocator still believes in it.
                with contextlib.suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


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
