"""What crosses the seam between scheduler and worker in a step; knows nothing of how a plan is made or run.

Shapes: ``R`` rows of the step, ``M`` values over all rows, ``n`` tokens of a request. Arrays are numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths in one array.

    Attributes:
        values: int32[M], the rows one after the other.
        offsets: int32[R + 1]; row ``r`` is ``values[offsets[r]:offsets[r + 1]]``.
    """

    values: Int32
    offsets: Int32

    @classmethod
    def empty(cls, num_rows: int) -> Ragged:
        """Make ``num_rows`` rows without values."""
        return cls(np.empty(0, np.int32), np.zeros(num_rows + 1, np.int32))

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Int32]) -> Ragged:
        """Join rows of integers into one ragged array."""
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), out=offsets[1:])
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Int32:
        """Return a view of one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def take(self, rows: Int64) -> Ragged:
        """Return the named rows, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        source = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[source], offsets)

    def concat(self, other: Ragged) -> Ragged:
        """Return the rows of both, this one's first."""
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ragged(np.concatenate([self.values, other.values]), offsets)


@dataclass(frozen=True, slots=True, eq=False)
class NewRow:
    """A request that takes a slot in this step.

    Attributes:
        slot: The slot it takes; free until now, or given back in the same plan.
        request_id: The request.
        token_ids: int32[n], every known token: the prompt and, after a preemption, the outputs so far.
        num_prompt_tokens: How many of them are the prompt.
        payload: ``Request.payload``, untouched.
    """

    slot: int
    request_id: str
    token_ids: Int32
    num_prompt_tokens: int
    payload: object = None


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step as arrays: which rows run, how far, and what changes on the worker before it.

    A worker first applies ``released``, then ``admitted``, ``new_blocks`` and ``transfers``, then runs the
    rows. Row ``r`` computes the tokens at positions ``num_computed[r]`` to
    ``num_computed[r] + num_tokens[r] - 1`` of its slot's token table. Where ``samples[r]``, it yields the
    token at the next position and writes it to that table: the plan after it may already count on it.

    Attributes:
        step_id: Counts plans from 0; plans are executed in this order.
        slots: int32[R], rows with one token first.
        num_tokens: int32[R], at least 1.
        num_computed: int32[R], tokens whose KV is in the cache before this step.
        samples: bool[R].
        new_blocks: Per KV group, blocks to append to each row's block table before the step.
        admitted: Requests new to their slot; their whole block table is in ``new_blocks``.
        released: int32[], slots given back before this step.
        transfers: int32[m, 3], (kind, source, destination) of block contents to copy before the step, one
            after the other; kinds are ``COPY``, ``STORE`` and ``LOAD`` of ``llm_kvcache``.
        drafts: Draft tokens to check, by row; None for none at all. A row with k of them has ``num_tokens``
            1 + k: its last known token, then the drafts, which are in no token table yet. It yields the
            drafts it accepts and one token more, 1 to k + 1 tokens.
    """

    step_id: int
    slots: Int32
    num_tokens: Int32
    num_computed: Int32
    samples: Bool
    new_blocks: tuple[Ragged, ...]
    admitted: list[NewRow]
    released: Int32
    transfers: Int32
    drafts: Ragged | None = None

    @property
    def num_rows(self) -> int:
        """Rows in the step."""
        return len(self.slots)

    @property
    def total_tokens(self) -> int:
        """Tokens that the step computes over all rows."""
        return int(self.num_tokens.sum())


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a worker returns for a plan.

    Attributes:
        step_id: The plan's.
        tokens: Per row of the plan the tokens it yielded, empty where it does not sample.
        logprobs: By row; opaque, passed through to ``RowOutput``.
        prompt_logprobs: By row; opaque, passed through.
        faults: By row, a message: that request ends with ``finish_reason`` "error".
        drafts: By row, tokens proposed to follow the ones it yielded; None for none at all.
    """

    step_id: int
    tokens: Ragged
    logprobs: Mapping[int, object] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, object] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    drafts: Ragged | None = None


@dataclass
class RowOutput:
    """What a step brought for one request.

    Attributes:
        request_id: The request.
        tokens: New output tokens, a stop token included.
        finish_reason: "stop", "length", "error", "deadline" (it can no longer be in time and was not
            running), or None while it goes on. "abort" is for callers that tell their own clients:
            ``Scheduler.abort`` answers by its return value and yields no output.
        stop_token: The stop token that ended it, or None.
        num_cached_tokens: Prompt tokens that the prefix cache held when the request was first admitted.
        logprobs: As in ``StepResult``, or None.
        prompt_logprobs: As in ``StepResult``, or None.
        error: The message where ``finish_reason`` is "error".
    """

    request_id: str
    tokens: list[int]
    finish_reason: str | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0
    logprobs: object = None
    prompt_logprobs: object = None
    error: str | None = None

    @classmethod
    def of_single_tokens(
        cls, request_ids: Sequence[str], tokens: Sequence[int], num_cached_tokens: Sequence[int]
    ) -> list[RowOutput]:
        """Make the outputs of many rows that yielded one token each and go on.

        A full batch makes a thousand in each step, so only what differs from the class's defaults is set.
        """
        outputs: list[RowOutput] = []
        make, take = object.__new__, outputs.append
        for request_id, token, num_cached in zip(request_ids, tokens, num_cached_tokens, strict=True):
            output = make(cls)
            output.request_id = request_id
            output.tokens = [token]
            output.num_cached_tokens = num_cached
            take(output)
        return outputs
