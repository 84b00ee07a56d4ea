"""Decides which steps of decode rows and prompts are captured; knows nothing of devices or of models.

Only small steps: a step of many tokens keeps the device busy for longer than its launches take the host. A
size runs unpadded until it came before, then once padded and kernel by kernel, then as a graph. As in
`capture_policy`, decisions follow from the sequence of steps alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from llm_engine.worker.mixed_layout import MixedKey

LARGEST_TOKENS = 512
LARGEST_PROMPTS = 16
LARGEST_DECODES = 512
_TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, LARGEST_TOKENS)
_PROMPTS = (1, 4, LARGEST_PROMPTS)
# Few sizes of the decode rows: each is one more factor of the number of graphs.
_DECODES = (0, 4, 16, 64, 128, 256, LARGEST_DECODES)
_PATIENCE = 2
LARGEST_STEP = MixedKey(LARGEST_TOKENS, LARGEST_DECODES, LARGEST_PROMPTS)
"""As large as any in each of its sizes."""


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
        lockstep: Whether other ranks make the same decisions; see `CapturePolicy`.
    """

    def __init__(self, *, lockstep: bool = False) -> None:
        self._lockstep = lockstep
        self._asked: dict[MixedKey, int] = {}
        self._hopeless: set[MixedKey] = set()

    def choose(
        self, num_tokens: int, num_decodes: int, num_prompts: int, *, filters: bool
    ) -> MixedChoice | None:
        """How to run a step of so many tokens in all; None: unpadded."""
        key = mixed_key(num_tokens, num_decodes, num_prompts, filters=filters)
        if key is None or key in self._hopeless:
            return None
        self._asked[key] = self._asked.get(key, 0) + 1
        if self._asked[key] < _PATIENCE:
            return None
        return MixedChoice(key, captures=self._asked[key] == _PATIENCE)

    def failed(self, key: MixedKey) -> None:
        """A size could not be captured, or there is no memory for it."""
        if not self._lockstep:
            self._hopeless.add(key)


def mixed_key(num_tokens: int, num_decodes: int, num_prompts: int, *, filters: bool) -> MixedKey | None:
    """The least sizes that hold a step; None: none do."""
    decodes, prompts = _least(_DECODES, num_decodes), _least(_PROMPTS, num_prompts)
    if decodes is None or prompts is None:
        return None
    tokens = _least(_TOKENS, num_tokens - num_decodes + decodes)
    return None if tokens is None else MixedKey(tokens, decodes, prompts, filters)


def _least(sizes: tuple[int, ...], number: int) -> int | None:
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None
