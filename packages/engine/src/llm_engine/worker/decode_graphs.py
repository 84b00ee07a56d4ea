"""Runs decode steps from one upload, as captured graphs where there are some; knows nothing of plans.

A graph saves the host's launches: a small model's decode step is hundreds of kernels that the device runs
faster than the host can launch them. Sizes are captured behind a step that ran kernel by kernel. A capture
that fails is remembered, and such steps run kernel by kernel.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import torch
from torch import Tensor

from llm_engine.worker.capture_policy import CapturePolicy, Choice
from llm_engine.worker.decode_layout import DecodeLayout, DeviceDecode, HostDecode
from llm_engine.worker.decode_step import DecodeStep
from llm_engine.worker.graph_buckets import GraphKey
from llm_engine.worker.graph_capture import Capture, Captured
from llm_engine.worker.upload import PinnedRing

_LOG = logging.getLogger(__name__)
# What fails again and again is not worth the pauses of further trials.
_MAX_FAILURES = 3


class _Buffers(NamedTuple):
    """The input of one size: its bytes on the device, and the arrays in them."""

    words: Tensor
    arrays: DeviceDecode


class DecodeGraphs:
    """The graphs of one model runner, over one input buffer.

    Args:
        step: What to run.
        policy: Which sizes, and when to capture.
        capture: Makes a graph of a function.
        num_groups: KV groups.
        max_rows: Most rows with padding.
        device: Where the step runs.
        memory_bytes: Device memory that the graphs may take; above it none is captured any more.

    Attributes:
        num_replays: Steps that replayed a graph.
        num_bytes: Device memory that the graphs took.
    """

    def __init__(
        self,
        step: DecodeStep,
        policy: CapturePolicy,
        capture: Capture,
        *,
        num_groups: int,
        max_rows: int,
        device: torch.device,
        memory_bytes: int,
    ) -> None:
        self._step = step
        self._policy = policy
        self._capture = capture
        self._num_groups = num_groups
        self._memory_bytes = memory_bytes
        largest = DecodeLayout(max_rows, num_groups).num_bytes
        self._input = torch.zeros(largest, dtype=torch.uint8, device=device)
        self._ring = PinnedRing(largest, device)
        self._layouts: dict[int, DecodeLayout] = {}
        self._buffers: dict[int, _Buffers] = {}
        self._hosts: dict[tuple[int, int], HostDecode] = {}
        self._graphs: dict[GraphKey, Captured] = {}
        self._due: GraphKey | None = None
        self._num_failures = 0
        self.num_replays = self.num_bytes = 0

    def choose(self, step: GraphKey) -> Choice | None:
        """How to run a step whose `rows` are the real ones; None: not here."""
        return self._policy.choose(step)

    def host_arrays(self, key: GraphKey) -> HostDecode:
        """The next buffer for the host's words, all padding; good until the second call after this."""
        index = self._ring.advance()
        try:
            host = self._hosts[key.rows, index]
        except KeyError:
            host = self._layout(key.rows).on_host(self._ring.arrays[index])
            self._hosts[key.rows, index] = host
        host.clear()
        return host

    def run(self, choice: Choice) -> Tensor:
        """Queues the upload of what `host_arrays` gave last, and the step, on the current stream.

        Returns:
            What `DecodeStep.tokens` returns, or `DecodeStep.hidden` where the key does not draw. It may be
            overwritten by the next run: queue what reads it before that.
        """
        buffers = self._buffers_of(choice.key.rows)
        self._ring.send(buffers.words)
        graph = self._graphs.get(choice.key)
        if graph is not None:
            self.num_replays += 1
            graph.replay()
            return graph.output
        if choice.captures:
            self._due = choice.key
        return self._run_eagerly(choice.key, buffers.arrays)

    def capture_due(self) -> None:
        """Captures the size that ran last, if it is due. Call it when all of the step has been queued."""
        key, self._due = self._due, None
        if key is None:
            return
        if self._num_failures >= _MAX_FAILURES or self.num_bytes >= self._memory_bytes:
            self._policy.failed(key)
            return
        started_s = time.perf_counter()
        arrays = self._buffers_of(key.rows).arrays
        try:
            captured = self._capture(lambda: self._run_eagerly(key, arrays))
        except Exception as error:  # noqa: BLE001 - whatever it is, the step can run without a graph
            reason = (str(error) or type(error).__name__).splitlines()[0]
            if self._capture.weaken():
                _LOG.info("no whole graph for %d rows, trying pieces: %s", key.rows, reason)
                self._due = key
                self.capture_due()
                return
            self._num_failures += 1
            self._policy.failed(key)
            _LOG.warning("no graph for %d rows, running eagerly: %s", key.rows, reason)
            return
        self._graphs[key] = captured
        self.num_bytes += captured.num_bytes
        elapsed_ms = 1000 * (time.perf_counter() - started_s)
        what = "decode and draw" if key.draws else "decode"
        _LOG.info("captured the %s of %d rows in %.0f ms", what, key.rows, elapsed_ms)

    def _run_eagerly(self, key: GraphKey, arrays: DeviceDecode) -> Tensor:
        if key.draws:
            return self._step.tokens(arrays, shares=key.shares, filters=key.filters)
        return self._step.hidden(arrays, shares=key.shares)

    def _layout(self, num_rows: int) -> DecodeLayout:
        if num_rows not in self._layouts:
            self._layouts[num_rows] = DecodeLayout(num_rows, self._num_groups)
        return self._layouts[num_rows]

    def _buffers_of(self, num_rows: int) -> _Buffers:
        if num_rows not in self._buffers:
            layout = self._layout(num_rows)
            words = self._input[: layout.num_bytes]
            self._buffers[num_rows] = _Buffers(words, layout.on_device(words))
        return self._buffers[num_rows]
