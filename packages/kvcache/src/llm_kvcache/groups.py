"""Owns the kinds of KV groups: layers that share a block size and a rule for which tokens they keep."""

from dataclasses import dataclass
from typing import TypeAlias

from llm_kvcache.errors import InvalidArgument


def _require_size(field: str, value: object) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or not 1 <= value < 2**31:  # type: ignore[operator]  # is_int says so
        raise InvalidArgument(field, value, "must be an integer from 1 to 2**31 - 1")


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Layers in which every token sees all tokens before it, so every block is kept.

    Attributes:
        block_size: Tokens a block holds, 1 to 2**31 - 1.
    """

    block_size: int = 16

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)


@dataclass(frozen=True, slots=True)
class MLALatent:
    """Layers of multi-head latent attention: full attention over one compressed latent a token.

    Blocks are managed as those of `FullAttention`; the kind tells the worker what a block holds.

    Attributes:
        block_size: Tokens a block holds, 1 to 2**31 - 1.
    """

    block_size: int = 64

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers in which a token sees itself and the `window - 1` tokens before it.

    Blocks that the next token does not see are given back when the tokens are committed.

    Attributes:
        block_size: Tokens a block holds, 1 to 2**31 - 1.
        window: Tokens that a token sees, itself included.
    """

    block_size: int
    window: int

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)
        _require_size("window", self.window)


@dataclass(frozen=True, slots=True)
class ChunkedLocal:
    """Layers in which a token sees the tokens of its own chunk up to itself (Llama 4).

    Attributes:
        block_size: Tokens a block holds, 1 to 2**31 - 1.
        chunk_size: Tokens from one border to the next.
    """

    block_size: int
    chunk_size: int

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)
        _require_size("chunk_size", self.chunk_size)


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Layers that carry a state from token to token (Mamba, linear attention, short convolution).

    Entry `i` of the block table holds the state after the last computed token of tokens `i * block_size` to
    `(i + 1) * block_size - 1`. A worker reads the entry of the last computed token and writes that of the
    last token of its step, and the state at each border in between: a full block is a checkpoint from which
    others can go on. Only the newest entry is held; the others are cached checkpoints.

    Attributes:
        block_size: Tokens from one checkpoint to the next. Large ones save blocks, but hits are multiples.
    """

    block_size: int

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Layers that attend to the tokens of an encoder (`KVCache.open(encoder_tokens=)`).

    The blocks come with the first growth, stay as many, and are not found by their contents.

    Attributes:
        block_size: Encoder tokens a block holds, 1 to 2**31 - 1.
    """

    block_size: int = 16

    def __post_init__(self) -> None:
        _require_size("block_size", self.block_size)


Group: TypeAlias = FullAttention | MLALatent | SlidingWindow | ChunkedLocal | RecurrentState | CrossAttention
"""A set of layers whose blocks are managed together."""


def native_group(group: Group) -> tuple[str, int, int]:
    """Returns kind, block size and the size of the kind (0 without), as the native module takes them.

    Raises:
        InvalidArgument: It is no group.
    """
    match group:
        case FullAttention() | MLALatent():
            return "full", group.block_size, 0
        case SlidingWindow():
            return "window", group.block_size, group.window
        case ChunkedLocal():
            return "chunk", group.block_size, group.chunk_size
        case RecurrentState():
            return "state", group.block_size, 0
        case CrossAttention():
            return "encoder", group.block_size, 0
        case _:
            raise InvalidArgument("groups", group, "must be KV groups of llm_kvcache")
