"""KV groups and their pages as plain data that crosses from worker to core; knows nothing of tensors."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec
from llm_kvcache import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    Group,
    MLALatent,
    RecurrentState,
    SlidingWindow,
)

GroupKind: TypeAlias = Literal["full", "latent", "window", "chunk", "state", "cross"]


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Caches of a model that share block tables.

    Attributes:
        kind: What a block holds and which blocks are kept; see the groups of `llm_kvcache`.
        block_size: Tokens of a block; for "state", tokens from one checkpoint to the next.
        span: Tokens of the window or the chunk; 0 for other kinds.
        caches: Indices into `Decoder.caches`, ascending.
    """

    kind: GroupKind
    block_size: int
    span: int = 0
    caches: tuple[int, ...]

    @property
    def has_slots(self) -> bool:
        """Whether each token has a place of its own in a block."""
        return self.kind != "state"

    @property
    def follows_tokens(self) -> bool:
        """Whether its blocks grow with the sequence; those of "cross" follow an encoder's input."""
        return self.kind != "cross"

    def for_cache(self) -> Group:
        """The group as `KVCache` takes it."""
        match self.kind:
            case "full":
                return FullAttention(self.block_size)
            case "latent":
                return MLALatent(self.block_size)
            case "window":
                return SlidingWindow(self.block_size, self.span)
            case "chunk":
                return ChunkedLocal(self.block_size, self.span)
            case "state":
                return RecurrentState(self.block_size)
            case "cross":
                return CrossAttention(self.block_size)


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV groups of a model. They draw pages from one pool: a page is a block of any one group.

    Attributes:
        groups: At least one that follows tokens.
        page_bytes: Bytes of a page on this rank.
    """

    groups: tuple[KVGroup, ...]
    page_bytes: int

    @property
    def alignment(self) -> int:
        """Tokens that prefix hits are multiples of."""
        return math.lcm(*(group.block_size for group in self.groups if group.follows_tokens))

    def cache_groups(self) -> tuple[int, ...]:
        """For each cache of the model, its group."""
        pairs = [(cache, index) for index, group in enumerate(self.groups) for cache in group.caches]
        return tuple(index for _, index in sorted(pairs))

    def pages(self, num_tokens: int) -> int:
        """Pages that a sequence of so many tokens may need at once, as the scheduler counts them."""
        return sum(-(-num_tokens // group.block_size) for group in self.groups)

    def longest(self, num_pages: int) -> int:
        """Tokens of the longest sequence that so many pages hold."""
        low, high = 0, num_pages * max(group.block_size for group in self.groups)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.pages(middle) <= num_pages else (low, middle - 1)
        return low
