"""Decides when a size is worth a capture and what runs until then; knows nothing of devices or of models.

A capture costs the host some tens of milliseconds, so nothing is captured before it is needed. A step whose
size has no graph is padded to the next larger size that has one, and only a size that comes again and again
gets its own. Where there is no larger one the step runs kernel by kernel, padded to its size, which loads
all kernels, and is captured behind that while the device is busy with it. Prompts keep the device busy for
longest: behind them the sizes are captured that the rows will need when their prompts are done.

Decisions follow from the sequence of steps alone, never from clocks, so that all ranks of a model make the
same: a rank that ran other sizes than the rest would wait for them forever.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from llm_engine.worker.graph_buckets import GraphBuckets, GraphKey

# Padding a step by as many rows as it has costs about a sixteenth of it, a capture some sixty steps.
_PATIENCE = 64
_LEAST_PATIENCE = 16
_MOST_PATIENCE = 1024
# What a capture costs beyond what runs behind the device: a step is launched kernel by kernel, and once more.
# The two took 13 to 30 and 10 to 31 ms on hosts of an H200.
_CAPTURE_S = 0.035
# Fewer rows are multiplied in the time that the weights take to read.
_FREE_ROWS = 64
# Rows of padding are multiplied as the others are, at some 600 TFLOP/s on an H200.
_PARAMETERS_PER_SECOND = 3e14
# A step that takes so long, by its tokens, hides most of a capture.
_HIDING_S = 0.016
# Between two captures that only replace a larger size, so that they take a small share of the time.
_GAP = 64


class Choice(NamedTuple):
    """How a step runs.

    Attributes:
        key: Its size and kind.
        captures: Whether it runs kernel by kernel and its size is captured behind it.
    """

    key: GraphKey
    captures: bool


class CapturePolicy:
    """The sizes that have graphs, and what was asked for.

    Args:
        buckets: The sizes.
        num_parameters: The model's; 0 where they must not matter, since other ranks have other counts. Then
            nothing is captured behind prompts.
        lockstep: Whether other ranks make the same decisions: then no graph that this one has not got may
            change the sizes it runs.
    """

    def __init__(self, buckets: GraphBuckets, *, num_parameters: int = 0, lockstep: bool = False) -> None:
        self._buckets = buckets
        self._row_s = num_parameters / _PARAMETERS_PER_SECOND
        self._lockstep = lockstep
        self._settled: set[GraphKey] = set()
        self._hopeless: set[GraphKey] = set()
        self._asked: dict[GraphKey, int] = {}
        self._since_capture = 0

    def choose(self, step: GraphKey) -> Choice | None:
        """How a step runs whose `rows` are the real ones.

        Returns:
            None where it has no size, or its size cannot be captured and no larger one is there: it runs
            unpadded.
        """
        bucket = self._buckets.choose(step.rows)
        if bucket is None:
            return None
        self._since_capture += 1
        key = step._replace(rows=bucket)
        if key in self._settled:
            return Choice(key, captures=False)
        larger = self._least_larger(key)
        if larger is None:
            return None if key in self._hopeless else self._capture(key)
        if key in self._hopeless:
            return Choice(larger, captures=False)
        self._asked[key] = self._asked.get(key, 0) + 1
        if self._asked[key] >= self._patience(key, larger) and self._since_capture >= _GAP:
            return self._capture(key)
        return Choice(larger, captures=False)

    def most_wanted(self) -> GraphKey | None:
        """The size that was padded to a larger one most often, which is settled with this call."""
        wanted = [key for key in self._asked if key not in self._settled and key not in self._hopeless]
        if not wanted:
            return None
        return self._capture(max(wanted, key=lambda key: (self._asked[key], key))).key

    def behind_prompts(self, step: GraphKey, num_tokens: int) -> GraphKey | None:
        """The size to capture behind a step with prompts, which is settled with this call.

        Args:
            step: The step that decodes all rows when the prompts are done.
            num_tokens: Tokens of the step with prompts.

        Returns:
            The least size that holds the rows and has no graph yet, else the largest of the smaller ones;
            None: there is none, or the step is too short.
        """
        if num_tokens * self._row_s < _HIDING_S:
            return None
        sizes = self._buckets.rows
        first = bisect_left(sizes, step.rows)
        for rows in (*sizes[first:], *reversed(sizes[:first])):
            key = step._replace(rows=rows)
            if key not in self._settled and key not in self._hopeless:
                return self._capture(key).key
        return None

    def failed(self, key: GraphKey) -> None:
        """A size could not be captured, or there is no memory for it."""
        if not self._lockstep:
            self._settled.discard(key)
            self._hopeless.add(key)

    def _patience(self, key: GraphKey, larger: GraphKey) -> int:
        """Steps that run padded to `larger` before `key` gets its own graph."""
        padding = larger.rows - key.rows
        patience = _PATIENCE * key.rows // padding
        wasted_s = padding * self._row_s if larger.rows > _FREE_ROWS else 0.0
        if wasted_s > 0:
            patience = min(patience, int(_CAPTURE_S / wasted_s))
        return min(max(patience, _LEAST_PATIENCE), _MOST_PATIENCE)

    def _capture(self, key: GraphKey) -> Choice:
        self._settled.add(key)
        self._since_capture = 0
        return Choice(key, captures=True)

    def _least_larger(self, key: GraphKey) -> GraphKey | None:
        larger = (other for other in self._settled if other.rows > key.rows and other[1:] == key[1:])
        return min(larger, default=None)
