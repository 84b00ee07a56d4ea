"""Fits the constants of a step-time model to recorded steps; knows nothing of where the records come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from itertools import combinations

import numpy as np

from llm_scheduler.sim.errors import InvalidStepTime
from llm_scheduler.sim.step_time import StepRecord, StepTimeModel
from llm_scheduler.sim.workload import Float64

_NAMES = tuple(constant.name for constant in fields(StepTimeModel))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """A fitted model and how well it tells the recorded times.

    Attributes:
        model: The model.
        num_steps: Steps it was fitted to.
        r_squared: Share of the variance of the times that it explains; 1 is perfect.
        mean_relative_error: Mean of |predicted - recorded| / recorded.
        max_relative_error: Largest of them.
        unseen: Constants that are 0 because nothing in the records depends on them.
        ambiguous: Constants that the records do not tell apart: other values would fit as well.
    """

    model: StepTimeModel
    num_steps: int
    r_squared: float
    mean_relative_error: float
    max_relative_error: float
    unseen: tuple[str, ...]
    ambiguous: tuple[str, ...]


def fit_step_time(records: Sequence[StepRecord]) -> StepTimeFit:
    """Fit the constants, none below zero, by least squares of the relative errors.

    Relative, because a trace has steps of half a millisecond beside steps of a hundred, and both matter.

    Args:
        records: Steps of a run, of different loads.

    Raises:
        InvalidStepTime: Fewer than two steps, or no constants give every step a positive time.
    """
    InvalidStepTime.require("records", len(records) >= 2, f"expected at least 2 steps, got {len(records)}")
    loads = np.array([(1, *astuple(record.load)) for record in records], np.float64)
    seconds = np.array([record.seconds for record in records], np.float64)
    seen = np.flatnonzero(loads.any(axis=0))
    scale = loads[:, seen].max(axis=0)
    design = loads[:, seen] / scale / seconds[:, None]
    constants = np.zeros(len(_NAMES))
    constants[seen] = _nonnegative_least_squares(design, np.ones(len(records))) / scale
    predicted = loads @ constants
    errors = np.abs(predicted - seconds) / seconds
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    left = float(((seconds - predicted) ** 2).sum())
    return StepTimeFit(
        model=StepTimeModel(**dict(zip(_NAMES, constants.tolist(), strict=True))),
        num_steps=len(records),
        r_squared=1 - left / spread if spread else 1.0,
        mean_relative_error=float(errors.mean()),
        max_relative_error=float(errors.max()),
        unseen=tuple(name for i, name in enumerate(_NAMES) if i not in seen),
        ambiguous=_ambiguous(design, seen.tolist()),
    )


def _nonnegative_least_squares(design: Float64, target: Float64) -> Float64:
    """Return the x >= 0 nearest to design @ x = target.

    It is the best of the unconstrained solutions over every subset of columns, of those without a negative
    value: exact, and with five columns only 31 small problems.
    """
    best, best_error = np.zeros(design.shape[1]), np.inf
    columns = range(design.shape[1])
    for size in range(1, design.shape[1] + 1):
        for subset in map(list, combinations(columns, size)):
            found, *_ = np.linalg.lstsq(design[:, subset], target, rcond=None)
            if (found < 0).any():
                continue
            error = float(((design[:, subset] @ found - target) ** 2).sum())
            if error < best_error * (1 - 1e-9):
                best_error = error
                best = np.zeros(design.shape[1])
                best[subset] = found
    return best


def _ambiguous(design: Float64, seen: list[int]) -> tuple[str, ...]:
    """Return the constants whose columns are combinations of the others."""
    rank = np.linalg.matrix_rank(design)
    if rank == design.shape[1]:
        return ()
    without = [np.linalg.matrix_rank(np.delete(design, column, axis=1)) for column in range(design.shape[1])]
    return tuple(_NAMES[seen[column]] for column, left in enumerate(without) if left == rank)
