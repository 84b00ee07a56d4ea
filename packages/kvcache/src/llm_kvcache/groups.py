"""Owns the kinds of KV groups: layers that share a block size and a rule for which tokens they keep."""

from dataclasses import dataclass
from typing import Protocol

from llm_kvcache.errors import InvalidArgument


class Group(Protocol):
    """A set of layers whose blocks are managed together."""

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        ...


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Layers in which every token sees all tokens before it, so every block is kept.

    Attributes:
        block_size: Tokens a block holds, 1 to 2**31 - 1.
    """

    block_size: int = 16

    def __post_init__(self) -> None:
        is_int = isinstance(self.block_size, int) and not isinstance(self.block_size, bool)
        if not is_int or not 1 <= self.block_size < 2**31:
            raise InvalidArgument("block_size", self.block_size, "must be an integer from 1 to 2**31 - 1")
