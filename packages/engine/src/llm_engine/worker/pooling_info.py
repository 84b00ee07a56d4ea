"""What is known of a model that gives vectors or scores; knows nothing of torch or of how it is run."""

from collections.abc import Mapping
from typing import Any

import msgspec


class PoolingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that gives vectors or scores is like.

    Attributes:
        architecture: The body's name, as the checkpoint states it.
        vocab_size: Token ids are below this.
        max_tokens: Longest text in force.
        size: Length of the vectors, or number of scores.
        labels: What the scores stand for; empty for vectors.
        per_token: Whether there is an answer for each token, not for each text.
        normalize: Whether vectors have length 1 unless told otherwise.
        num_token_types: Types of tokens that the model tells apart; 0: none.
        num_parameters: Parameters on this rank.
        dtype: The torch dtype's name in force.
        device: The device in force.
        load_s: Seconds that loading took.
    """

    architecture: str
    vocab_size: int
    max_tokens: int
    size: int
    labels: tuple[str, ...]
    per_token: bool
    normalize: bool
    num_token_types: int
    num_parameters: int
    dtype: str
    device: str
    load_s: float = 0.0


class ShortVectors(msgspec.Struct, frozen=True, kw_only=True):
    """Which lengths of vectors, below the whole one, a model was trained for.

    Attributes:
        any_length: All of them.
        lengths: These.
    """

    any_length: bool = False
    lengths: tuple[int, ...] = ()

    def allow(self, length: int) -> bool:
        """Whether vectors may be cut to `length` numbers."""
        return self.any_length or length in self.lengths


def short_vectors(config: Mapping[str, Any]) -> ShortVectors:
    """What a config states: `matryoshka_dimensions` (these), or `is_matryoshka` (all); else none."""
    lengths = config.get("matryoshka_dimensions")
    if isinstance(lengths, list | tuple) and lengths:
        return ShortVectors(lengths=tuple(one for one in lengths if type(one) is int))
    return ShortVectors(any_length=config.get("is_matryoshka") is True)
