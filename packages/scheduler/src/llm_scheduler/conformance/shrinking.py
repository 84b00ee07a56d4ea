"""Cuts a sequence that breaks a rule down to a few operations; knows nothing of what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llm_scheduler.conformance.operations import Operation, Sequence

_MOST_REPLAYS = 300


def shrink(sequence: Sequence, num_operations: int, still_breaks: Callable[[Sequence], bool]) -> Sequence:
    """Return a shorter sequence that still breaks the rule.

    Args:
        sequence: A sequence that breaks it.
        num_operations: How many of its operations that took.
        still_breaks: Replays a sequence and tells whether it breaks the same rule.
    """
    replays = 0

    def breaks(operations: tuple[Operation, ...]) -> bool:
        nonlocal replays
        replays += 1
        return replays <= _MOST_REPLAYS and still_breaks(replace(sequence, operations=operations))

    kept = sequence.operations[:num_operations]
    if not breaks(kept):
        return sequence
    size = max(1, len(kept) // 2)
    while True:
        shorter = _without_chunks(kept, size, breaks)
        if size == 1 and len(shorter) == len(kept):
            return replace(sequence, operations=kept)
        kept = shorter
        size = max(1, size // 2)


def _without_chunks(
    operations: tuple[Operation, ...], size: int, breaks: Callable[[tuple[Operation, ...]], bool]
) -> tuple[Operation, ...]:
    """Take out each chunk of that size that is not needed."""
    start = 0
    while start < len(operations):
        shorter = operations[:start] + operations[start + size :]
        if breaks(shorter):
            operations = shorter
        else:
            start += size
    return operations
