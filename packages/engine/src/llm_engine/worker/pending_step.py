"""A step that was launched, and its way to a `StepResult`; knows nothing of how it was launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llm_scheduler import Ragged, StepResult
from numpy.typing import NDArray

from llm_engine.worker.logprobs import HostRanks
from llm_engine.worker.prompt_logprobs import PromptLogprobsCollector
from llm_engine.worker.sampler import Sampled

BROKEN_LOGITS = "the model's output for this request is not a number (NaN or infinite)"
FAULT = -1


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """What a step brings for one prompt's logprobs; `is_last`: it is whole then."""

    collector: PromptLogprobsCollector
    entries: list[HostRanks]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Launched:
    """Everything a launched step still owes.

    Attributes:
        step_id: The plan's.
        num_rows: Rows of the plan, R.
        sample_rows: int64[E], the rows that yield a token.
        sampled: Their tokens; None where E is 0.
        logprob_rows: For each entry of `sampled.logprobs`, its row in the plan and how many likely tokens it
            wants.
        prompt_chunks: By row.
        faults: By row, what was wrong before the step ran.
    """

    step_id: int
    num_rows: int
    sample_rows: NDArray[np.int64]
    sampled: Sampled | None
    logprob_rows: Sequence[tuple[int, int]]
    prompt_chunks: Mapping[int, PromptChunk]
    faults: Mapping[int, str]


class PendingStep:
    """The result of a launched step. Results must be taken in the order of the plans.

    Args:
        launched: What the step owes.
        event: Passes when the device has delivered; None where all is here.
    """

    def __init__(self, launched: Launched, event: torch.cuda.Event | None) -> None:
        self._launched = launched
        self._event = event
        self._result: StepResult | None = None

    def done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> StepResult:
        """Waits for the device, without holding the GIL, and builds the result."""
        if self._result is None:
            if self._event is not None:
                self._event.synchronize()
                self._event = None
            self._result = _build(self._launched)
        return self._result


def _build(launched: Launched) -> StepResult:
    faults = dict(launched.faults)
    tokens = Ragged.empty(launched.num_rows)
    if launched.sampled is not None:
        tokens = _tokens(launched, launched.sampled, faults)
    return StepResult(
        step_id=launched.step_id,
        tokens=tokens,
        logprobs=_logprobs(launched, faults),
        prompt_logprobs=_prompt_logprobs(launched, faults),
        faults=faults,
    )


def _tokens(launched: Launched, sampled: Sampled, faults: dict[int, str]) -> Ragged:
    # A copy: the buffer behind the tensor serves other steps.
    values = sampled.tokens.numpy()
    wanted = sampled.entries
    values = values[: len(launched.sample_rows)].copy() if wanted is None else values[wanted]
    for row in launched.sample_rows[values == FAULT].tolist():
        faults.setdefault(row, BROKEN_LOGITS)
    if not faults and len(values) == launched.num_rows:
        return Ragged(values, np.arange(launched.num_rows + 1, dtype=np.int32))
    good = ~np.isin(launched.sample_rows, list(faults)) if faults else np.ones(len(values), np.bool_)
    counts = np.zeros(launched.num_rows + 1, np.int32)
    counts[launched.sample_rows[good] + 1] = 1
    return Ragged(values[good].astype(np.int32, copy=False), np.cumsum(counts, dtype=np.int32))


def _logprobs(launched: Launched, faults: Mapping[int, str]) -> dict[int, object]:
    if launched.sampled is None or launched.sampled.logprobs is None:
        return {}
    entries = launched.sampled.logprobs.entries([count for _, count in launched.logprob_rows])
    rows = [row for row, _ in launched.logprob_rows]
    return {row: (entry,) for row, entry in zip(rows, entries, strict=True) if row not in faults}


def _prompt_logprobs(launched: Launched, faults: Mapping[int, str]) -> dict[int, object]:
    whole: dict[int, object] = {}
    for row, chunk in launched.prompt_chunks.items():
        chunk.collector.add(chunk.entries)
        if chunk.is_last and row not in faults:
            whole[row] = chunk.collector.whole()
    return whole
