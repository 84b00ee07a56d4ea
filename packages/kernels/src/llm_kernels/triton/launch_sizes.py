"""Whole-number arithmetic of launches; knows nothing of kernels. Triton's own costs microseconds a call."""

from __future__ import annotations


def ceil_div(amount: int, size: int) -> int:
    """How many pieces of a size hold an amount."""
    return -(-amount // size)


def power_of_2(amount: int) -> int:
    """The least power of two from `amount` (at least 1) on."""
    return 1 << (amount - 1).bit_length()
