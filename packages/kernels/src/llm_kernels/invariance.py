"""Asking the ops for results that do not depend on the batch; knows nothing about any op or back end.

A back end is batch-invariant when a row's result has the same bits whatever other rows there are, wherever
it stands among them, and however a sequence is cut into steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

BATCH_INVARIANT = "batch_invariant"
"""The feature of the registry."""

_IS_WANTED: ContextVar[bool] = ContextVar("is_batch_invariance_wanted", default=False)
_IS_ROW_BY_ROW: ContextVar[bool] = ContextVar("is_row_by_row", default=False)


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Inside the block, and in this thread only, ops choose among their batch-invariant back ends.

    An op that has none for a problem raises `BackendUnavailable`.
    """
    token = _IS_WANTED.set(True)
    try:
        yield
    finally:
        _IS_WANTED.reset(token)


def is_batch_invariance_wanted() -> bool:
    """Whether this thread is inside a `batch_invariant` block."""
    return _IS_WANTED.get()


@contextmanager
def row_by_row() -> Iterator[None]:
    """Inside the block torch's own operations see one row, so that no check need look at them."""
    token = _IS_ROW_BY_ROW.set(True)
    try:
        yield
    finally:
        _IS_ROW_BY_ROW.reset(token)


def is_row_by_row() -> bool:
    """Whether this thread is inside a `row_by_row` block."""
    return _IS_ROW_BY_ROW.get()
