"""Distributions of numbers of tokens, and their short notation; knows nothing of what the tokens are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from llm_scheduler.plan import Int64
from llm_scheduler.sim.errors import InvalidWorkload


class Lengths(Protocol):
    """Draws numbers of tokens."""

    def draw(self, rng: np.random.Generator, count: int) -> Int64:
        """Return int64[count], each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __post_init__(self) -> None:
        InvalidWorkload.require("fixed", self.tokens >= 1, "expected at least 1 token")

    def draw(self, rng: np.random.Generator, count: int) -> Int64:
        """Return int64[count]; draws nothing from the generator."""
        del rng
        return np.full(count, self.tokens, np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every number from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        InvalidWorkload.require("uniform", 1 <= self.low <= self.high, "expected 1 <= low <= high")

    def draw(self, rng: np.random.Generator, count: int) -> Int64:
        """Return int64[count]."""
        return rng.integers(self.low, self.high + 1, count)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal spread with this mean, rounded and cut to 1 .. ``high``.

    Attributes:
        mean: Mean before the cut.
        sigma: Standard deviation of the logarithm; 0 is ``Fixed``.
        high: Highest value; cutting lowers the mean a little.
    """

    mean: float
    sigma: float
    high: int

    def __post_init__(self) -> None:
        InvalidWorkload.require("lognormal", 1 <= self.mean < math.inf, "expected a mean of at least 1")
        InvalidWorkload.require("lognormal", 0 <= self.sigma <= 5, "expected sigma from 0 to 5")
        InvalidWorkload.require("lognormal", self.high >= 1, "expected a highest value of at least 1")

    def draw(self, rng: np.random.Generator, count: int) -> Int64:
        """Return int64[count]."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        values = np.rint(rng.lognormal(mu, self.sigma, count))
        return np.clip(values, 1, self.high).astype(np.int64)


def parse_lengths(text: str) -> Lengths:
    """Read ``512``, ``fixed:512``, ``uniform:LOW:HIGH`` or ``lognormal:MEAN:SIGMA[:HIGH]``.

    ``HIGH`` of a log-normal is 32 times the mean where left out.

    Raises:
        InvalidWorkload: The text is none of these; the field is the text.
    """
    kind, *values = text.split(":") if ":" in text else ["fixed", text]
    try:
        if kind == "fixed" and len(values) == 1:
            return Fixed(int(values[0]))
        if kind == "uniform" and len(values) == 2:
            return Uniform(int(values[0]), int(values[1]))
        if kind == "lognormal" and len(values) in {2, 3}:
            mean, sigma = float(values[0]), float(values[1])
            high = int(values[2]) if len(values) == 3 else math.ceil(32 * mean)
            return LogNormal(mean, sigma, high)
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidWorkload):
            raise
        raise InvalidWorkload(text, "expected numbers behind the name") from error
    raise InvalidWorkload(text, "expected N, fixed:N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA[:HIGH]")
