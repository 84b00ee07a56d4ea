"""Runs steps of fixed sizes from one upload, as captured graphs where there are some; knows nothing of plans.

A graph saves the host's launches: a small model's decode step is hundreds of kernels that the device runs
faster than the host can launch them. Sizes are captured behind a step that ran kernel by kernel. A capture
that fails is remembered, and such steps run kernel by kernel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.graph_capture import Capture, Captured
from llm_engine.worker.upload import PinnedRing

_LOG = logging.getLogger(__name__)
# What fails again and again is not worth the pauses of further trials.
_MAX_FAILURES = 3


class HostWords(Protocol):
    """A step's words on the host."""

    def clear(self) -> None:
        """Makes all of them padding."""
        ...


K = TypeVar("K")
H = TypeVar("H", bound=HostWords)
D = TypeVar("D")
H_co = TypeVar("H_co", bound=HostWords, covariant=True)
D_co = TypeVar("D_co", covariant=True)


class Layout(Protocol[H_co, D_co]):
    """Where a step's words lie in a buffer."""

    @property
    def num_bytes(self) -> int:
        """Length of the buffer."""
        ...

    def on_host(self, buffer: NDArray[np.uint8]) -> H_co:
        """The words in the beginning of a buffer."""
        ...

    def on_device(self, buffer: Tensor) -> D_co:
        """The words in the beginning of a buffer."""
        ...


@dataclass(frozen=True, slots=True)
class StepKind(Generic[K, H, D]):
    """A family of steps, told apart by a key.

    Attributes:
        layout: Where the words of a key's steps lie.
        run: Runs such a step; all sizes follow from the key.
        describe: The step in words.
    """

    layout: Callable[[K], Layout[H, D]]
    run: Callable[[K, D], Tensor]
    describe: Callable[[K], str]


class GraphBudget:
    """Makes graphs as long as there is memory for them and they do not fail.

    Args:
        capture: Makes a graph of a function.
        memory_bytes: Device memory that all graphs may take; above it none is captured any more.

    Attributes:
        num_bytes: Device memory that they took.
        num_tried: Captures that were begun.
    """

    def __init__(self, capture: Capture, memory_bytes: int) -> None:
        self._capture = capture
        self._memory_bytes = memory_bytes
        self._num_failures = 0
        self.num_bytes = self.num_tried = 0

    def try_capture(self, function: Callable[[], Tensor], what: str) -> Captured | None:
        """Captures a function whose kernels have all run; None where it may not be or cannot be."""
        if self._num_failures >= _MAX_FAILURES or self.num_bytes >= self._memory_bytes:
            return None
        self.num_tried += 1
        started_s = time.perf_counter()
        try:
            captured = self._capture(function)
        except Exception as error:  # noqa: BLE001 - whatever it is, the step can run without a graph
            reason = (str(error) or type(error).__name__).splitlines()[0]
            if self._capture.weaken():
                _LOG.info("no whole graph of %s, trying pieces: %s", what, reason)
                return self.try_capture(function, what)
            self._num_failures += 1
            _LOG.warning("no graph for %s, running eagerly: %s", what, reason)
            return None
        self.num_bytes += captured.num_bytes
        _LOG.info("captured %s in %.0f ms", what, 1000 * (time.perf_counter() - started_s))
        return captured


class StepGraphs(Generic[K, H, D]):
    """The graphs of one kind of step, over one input buffer.

    Args:
        kind: What to run.
        budget: Makes the graphs.
        failed: Told of a key that got no graph.
        num_bytes: Length of the longest layout.
        device: Where the steps run.

    Attributes:
        num_replays: Steps that replayed a graph.
        graphs: Those there are.
    """

    def __init__(
        self,
        kind: StepKind[K, H, D],
        budget: GraphBudget,
        failed: Callable[[K], None],
        num_bytes: int,
        device: torch.device,
    ) -> None:
        self._kind = kind
        self._budget = budget
        self._failed = failed
        self._input = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._ring = PinnedRing(num_bytes, device)
        self._inputs: dict[K, tuple[Tensor, D]] = {}
        self._hosts: dict[tuple[K, int], H] = {}
        self._due: K | None = None
        self.graphs: dict[K, Captured] = {}
        self.num_replays = 0

    def host_arrays(self, key: K) -> H:
        """The next buffer for the host's words, all padding; good until the second call after this."""
        index = self._ring.advance()
        try:
            host = self._hosts[key, index]
        except KeyError:
            host = self._kind.layout(key).on_host(self._ring.arrays[index])
            self._hosts[key, index] = host
        host.clear()
        return host

    def run(self, key: K, *, captures: bool) -> Tensor:
        """Queues the upload of what `host_arrays` gave last, and the step, on the current stream.

        Args:
            key: That of `host_arrays`.
            captures: Whether `capture_due` will be called, when all of the step has been queued.

        Returns:
            What the kind's `run` returns. It may be overwritten by the next run: queue what reads it before
            that.
        """
        words, arrays = self._input_of(key)
        self._ring.send(words)
        graph = self.graphs.get(key)
        if graph is not None:
            self.num_replays += 1
            graph.replay()
            return graph.output
        if captures:
            self._due = key
        return self._kind.run(key, arrays)

    def capture_apart(self, key: K) -> None:
        """Captures a step while none is wanted: it runs once on padding, which loads its kernels."""
        self.host_arrays(key)
        self.run(key, captures=True)
        self.capture_due()

    def capture_due(self) -> None:
        """Captures the step that ran last, if it is due."""
        key, self._due = self._due, None
        if key is None:
            return
        _, arrays = self._input_of(key)
        run = self._kind.run
        captured = self._budget.try_capture(lambda: run(key, arrays), self._kind.describe(key))
        if captured is None:
            self._failed(key)
        else:
            self.graphs[key] = captured

    def _input_of(self, key: K) -> tuple[Tensor, D]:
        if key not in self._inputs:
            layout = self._kind.layout(key)
            words = self._input[: layout.num_bytes]
            self._inputs[key] = (words, layout.on_device(words))
        return self._inputs[key]
