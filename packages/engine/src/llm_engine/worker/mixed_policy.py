"""Decides which steps of decode rows and prompts are captured; knows nothing of devices or of models.

Only steps that the host could hardly launch as fast as the device runs them: of a large model those of few
tokens, of a small one all. A size runs unpadded until it came before, then once padded and kernel by kernel,
then as a graph; one that keeps the device busy for long is captured when it comes first. As in
`capture_policy`, decisions follow from the sequence of steps alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from llm_engine.worker.mixed_layout import MixedKey

LARGEST_DECODES = 512
LARGEST_PROMPTS = 64
LEAST_LARGEST_TOKENS = 512
# Above the usual budget of 8192 tokens by what pads the decode rows.
_TOKENS = (
    *(16, 32, 64, 96, 128, 192, 256, 384, LEAST_LARGEST_TOKENS),
    *(768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 8320, 8704),
)
_PROMPTS = (1, 4, 16, LARGEST_PROMPTS)
# Few sizes of the decode rows: each is one more factor of the number of graphs.
_DECODES = (0, 4, 16, 64, 128, 256, LARGEST_DECODES)
_PATIENCE = 2
# Tokens times parameters a second, at some 600 TFLOP/s on an H200.
_RATE = 3e14
# A step that takes so long hides most of its launches and of its capture.
_HIDING_S = 0.012
# On an H200 a step takes the host some 20 ms to launch, in which the device multiplies a token by so many
# parameters, at 350 TFLOP/s.
_TOKENS_TIMES_PARAMETERS = 3.5e12
# Up to here the device is at most twice as slow as the host: what the host is spared still counts, as it
# varies from machine to machine.
_MARGIN = 2


def largest_tokens(num_parameters: int) -> int:
    """Most tokens of a step that is worth a graph, for a model of so many parameters."""
    worth = _MARGIN * _TOKENS_TIMES_PARAMETERS / max(num_parameters, 1)
    return min(max(int(worth), LEAST_LARGEST_TOKENS), _TOKENS[-1])


def hiding_tokens(num_parameters: int) -> int:
    """Least tokens of a step that hides its capture, for a model of so many parameters."""
    return int(_HIDING_S * _RATE / max(num_parameters, 1))


class MixedChoice(NamedTuple):
    """How a step runs.

    Attributes:
        key: Its sizes.
        captures: Whether it runs kernel by kernel and is captured behind that.
    """

    key: MixedKey
    captures: bool


class MixedPolicy:
    """The sizes that have graphs, and what was asked for.

    Args:
        most_tokens: Steps with more are left alone.
        hides_from: Steps of so many tokens are captured when their size comes first; None: none are.
        lockstep: Whether other ranks make the same decisions; see `CapturePolicy`.
    """

    def __init__(
        self,
        most_tokens: int = LEAST_LARGEST_TOKENS,
        *,
        hides_from: int | None = None,
        lockstep: bool = False,
    ) -> None:
        self._sizes = [size for size in _TOKENS if size <= most_tokens]
        self._hides_from = hides_from
        self._settled: set[MixedKey] = set()
        self._lockstep = lockstep
        self._asked: dict[MixedKey, int] = {}
        self._hopeless: set[MixedKey] = set()

    def choose(
        self, num_tokens: int, num_decodes: int, num_prompts: int, *, filters: bool
    ) -> MixedChoice | None:
        """How to run a step of so many tokens in all; None: unpadded."""
        key = self.key(num_tokens, num_decodes, num_prompts, filters=filters)
        if key is None or key in self._hopeless:
            return None
        if key in self._settled:
            return MixedChoice(key, captures=False)
        self._asked[key] = self._asked.get(key, 0) + 1
        hides = self._hides_from is not None and num_tokens >= self._hides_from
        if self._asked[key] < _PATIENCE and not hides:
            return None
        self._settled.add(key)
        return MixedChoice(key, captures=True)

    def key(self, num_tokens: int, num_decodes: int, num_prompts: int, *, filters: bool) -> MixedKey | None:
        """The least sizes that hold a step; None: none do."""
        decodes, prompts = _least(_DECODES, num_decodes), _least(_PROMPTS, num_prompts)
        if decodes is None or prompts is None:
            return None
        tokens = _least(self._sizes, num_tokens - num_decodes + decodes)
        return None if tokens is None else MixedKey(tokens, decodes, prompts, filters)

    def failed(self, key: MixedKey) -> None:
        """A size could not be captured, or there is no memory for it."""
        if not self._lockstep:
            self._hopeless.add(key)


def _least(sizes: Sequence[int], number: int) -> int | None:
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None
