"""Cheap token ids for contents that exist only by name; knows nothing of requests.

A content is an endless stream of token ids with a number. Two requests share a prefix exactly where they were
given the same streams. The ids of a stream are consecutive, so that making a prompt costs one ``arange``; the
prefix cache chains its block hashes, so it is enough that two streams differ in every place.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from llm_scheduler.plan import Int32, Int64

STOP_TOKEN = 2**31 - 1
"""The token that ends a request whose declared limit is above its output length. No stream holds it."""

MAX_CONTENT = 2**28 - 1
"""Highest number of a content of one kind."""

_BITS = 30
_ODD = 0x9E3779B1


class Content(IntEnum):
    """Kinds of contents; equal numbers of different kinds are different contents."""

    UNIQUE = 0
    """Prompt tokens of one request alone, by its index."""
    SHARED = 1
    """Prompt tokens that several requests may have, by the index of their name."""
    OUTPUT = 2
    """What a request generates, by its index."""


def first_ids(kind: Content, numbers: Int64) -> Int64:
    """Return int64[n]: the first token id of each content; token ``k`` of it is this plus ``k``.

    Args:
        kind: The kind of all of them.
        numbers: int64[n], from 0 to ``MAX_CONTENT``.
    """
    # A multiplication by an odd number permutes the residues, so no two contents start alike.
    return ((numbers * 4 + int(kind)) * _ODD) % (1 << _BITS)


def first_id(kind: Content, number: int) -> int:
    """Return the first token id of one content, as ``first_ids`` does."""
    return ((number * 4 + int(kind)) * _ODD) % (1 << _BITS)


def token_ids(first_id: int, num_tokens: int) -> Int32:
    """Return int32[num_tokens]: the first tokens of the content that starts with this id."""
    return np.arange(first_id, first_id + num_tokens, dtype=np.int32)
