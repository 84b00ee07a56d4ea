"""The host's words of a step of decode rows and prompts, as one buffer; knows nothing of plans or of models.

Rows: decode rows padded to D, then prompts padded to P, then one row that owns the tokens that are left of T
and sees nothing. The first D tokens are the decode rows'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.packed_layout import PackedLayout


class MixedKey(NamedTuple):
    """What a captured step of decode rows and prompts is for.

    Attributes:
        tokens: Tokens with padding, T.
        decodes: Decode rows with padding, D.
        prompts: Prompts with padding, P.
        filters: Whether the draw heeds top-k, top-p and min-p.
    """

    tokens: int
    decodes: int
    prompts: int
    filters: bool = False

    @property
    def rows(self) -> int:
        """Rows that may yield a token, R."""
        return self.decodes + self.prompts


@dataclass(frozen=True, slots=True)
class HostMixed:
    """The arrays on the host, all views of one buffer.

    Attributes:
        packed: uint8, the buffer.
        slots: int64[R + 1].
        context_lens: int32[R + 1], tokens with the step's own; 0 for padding rows.
        cu_query_lens: int32[R + 2], prefix sums of the rows' tokens.
        token_slots: int64[T], the slot of each token.
        positions: int64[T]; -1 for padding.
        last_tokens: int64[R], each row's last token.
        next_positions: int64[R], where the drawn tokens will stand.
        places: int64[R], where to store drawn tokens in the token table, flat; -1: nowhere.
        seeds: int64[R].
        temperature: float32[R].
        top_p: float32[R].
        min_p: float32[R].
        top_k: int32[R].
    """

    packed: NDArray[np.uint8]
    slots: NDArray[np.int64]
    context_lens: NDArray[np.int32]
    cu_query_lens: NDArray[np.int32]
    token_slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    last_tokens: NDArray[np.int64]
    next_positions: NDArray[np.int64]
    places: NDArray[np.int64]
    seeds: NDArray[np.int64]
    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    top_k: NDArray[np.int32]

    def clear(self) -> None:
        """Makes everything padding, but for `cu_query_lens`."""
        self.packed.fill(0)
        self.positions.fill(-1)
        self.places.fill(-1)


@dataclass(frozen=True, slots=True)
class DeviceMixed:
    """The same arrays on the device; see `HostMixed`."""

    slots: Tensor
    context_lens: Tensor
    cu_query_lens: Tensor
    token_slots: Tensor
    positions: Tensor
    last_tokens: Tensor
    next_positions: Tensor
    places: Tensor
    seeds: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor


class MixedLayout:
    """The places for the sizes of a key.

    Args:
        key: The sizes.

    Attributes:
        num_bytes: Length of the buffer.
    """

    def __init__(self, key: MixedKey) -> None:
        rows, tokens = (key.rows,), (key.tokens,)
        self._layout = PackedLayout(
            {
                "slots": ("int64", (key.rows + 1,)),
                "context_lens": ("int32", (key.rows + 1,)),
                "cu_query_lens": ("int32", (key.rows + 2,)),
                "token_slots": ("int64", tokens),
                "positions": ("int64", tokens),
                "last_tokens": ("int64", rows),
                "next_positions": ("int64", rows),
                "places": ("int64", rows),
                "seeds": ("int64", rows),
                "temperature": ("float32", rows),
                "top_p": ("float32", rows),
                "min_p": ("float32", rows),
                "top_k": ("int32", rows),
            }
        )
        self.num_bytes = self._layout.num_bytes

    def on_host(self, buffer: NDArray[np.uint8]) -> HostMixed:
        """The arrays in the beginning of a buffer."""
        views: dict[str, Any] = self._layout.on_host(buffer)
        return HostMixed(packed=buffer[: self.num_bytes], **views)

    def on_device(self, buffer: Tensor) -> DeviceMixed:
        """The arrays in the beginning of a buffer."""
        return DeviceMixed(**self._layout.on_device(buffer))
