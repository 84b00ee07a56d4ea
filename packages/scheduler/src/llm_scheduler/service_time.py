"""How long a request takes to serve, from measured steps; knows nothing of deadlines or queues."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class ServiceTime(Protocol):
    """Estimates service times; a simulator passes ``FixedServiceTime`` and is deterministic."""

    def observe(self, num_rows: int, num_tokens: int, elapsed_s: float) -> None:
        """Take note of a step that ran.

        Args:
            num_rows: Its rows.
            num_tokens: Tokens it computed.
            elapsed_s: Seconds it kept the worker busy.
        """
        ...

    def seconds(self, num_prompt_tokens: int, num_outputs: int) -> float:
        """Estimate the seconds from the first step of a request to its last, were it alone with its kind.

        Args:
            num_prompt_tokens: Tokens to compute before the first output; 0 for the outputs alone.
            num_outputs: Tokens to yield; 0 for the prompt alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedServiceTime:
    """Constants instead of measurements.

    Attributes:
        prompt_token_s: Seconds for each prompt token.
        output_token_s: Seconds for each output token, at least 0.
    """

    prompt_token_s: float
    output_token_s: float

    def observe(self, num_rows: int, num_tokens: int, elapsed_s: float) -> None:
        """Pass over the measurement."""

    def seconds(self, num_prompt_tokens: int, num_outputs: int) -> float:
        """Return the sum of both parts."""
        return num_prompt_tokens * self.prompt_token_s + num_outputs * self.output_token_s


class MeasuredServiceTime:
    """Seconds by a line through the recent steps: a constant for a step and a slope for a token.

    An output token takes a step of the recent mean length, whatever else is in the step; a prompt token takes
    the slope. Old steps fade with a half-life of about 70 steps. Before the first step every estimate is 0,
    so that nothing is refused for want of a measurement.
    """

    _FADE = 0.99

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._tokens_squared = 0.0
        self._elapsed_s = 0.0
        self._tokens_by_elapsed = 0.0

    def observe(self, num_rows: int, num_tokens: int, elapsed_s: float) -> None:  # noqa: ARG002
        """Take note of a step that ran."""
        fade = self._FADE
        self._weight = self._weight * fade + 1.0
        self._tokens = self._tokens * fade + num_tokens
        self._tokens_squared = self._tokens_squared * fade + num_tokens * num_tokens
        self._elapsed_s = self._elapsed_s * fade + elapsed_s
        self._tokens_by_elapsed = self._tokens_by_elapsed * fade + num_tokens * elapsed_s

    def seconds(self, num_prompt_tokens: int, num_outputs: int) -> float:
        """Estimate from the line."""
        if not self._weight:
            return 0.0
        mean_step_s = self._elapsed_s / self._weight
        return num_prompt_tokens * self._token_s() + num_outputs * mean_step_s

    def _token_s(self) -> float:
        """Return the slope; where steps hardly differ, what a token took on average."""
        mean_tokens = self._tokens / self._weight
        mean_s = self._elapsed_s / self._weight
        variance = self._tokens_squared / self._weight - mean_tokens * mean_tokens
        if variance > 1e-6 * mean_tokens * mean_tokens:
            covariance = self._tokens_by_elapsed / self._weight - mean_tokens * mean_s
            slope_s = covariance / variance
            if slope_s > 0 and math.isfinite(slope_s):
                return min(slope_s, mean_s / mean_tokens)
        return mean_s / mean_tokens
