"""Where the host's words of a decode step lie in its one copy; knows nothing of plans or of models.

Every array has a fixed place that follows from the number of rows, so the host writes them into one pinned
buffer and the device reads them where a captured step expects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llm_kernels.ops import DecodeRows
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.packed_layout import PackedLayout
from llm_engine.worker.shared_prefix import packed_words


@dataclass(frozen=True, slots=True)
class HostDecode:
    """The arrays of B rows on the host, all views of one buffer. G KV groups.

    Attributes:
        packed: uint8, the buffer.
        slots: int64[B].
        context_lens: int32[B], tokens with the step's own; 0 for padding rows.
        next_positions: int64[B], where the drawn tokens will stand.
        places: int64[B], where to store drawn tokens in the token table, flat; -1: nowhere.
        seeds: int64[B].
        temperature: float32[B].
        top_p: float32[B]; it and the next two are read only by steps that filter.
        min_p: float32[B].
        top_k: int32[B].
        new_columns: int32[G, B], where the row's block table grows; -1: it does not. KV groups stand in the
            order of `SlotTables.table_order`.
        new_blocks: int32[G, B], by which block.
        prefixes: int32, the words of `PrefixPlan.pack(B)`.
    """

    packed: NDArray[np.uint8]
    slots: NDArray[np.int64]
    context_lens: NDArray[np.int32]
    next_positions: NDArray[np.int64]
    places: NDArray[np.int64]
    seeds: NDArray[np.int64]
    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    new_columns: NDArray[np.int32]
    new_blocks: NDArray[np.int32]
    prefixes: NDArray[np.int32]

    def clear(self) -> None:
        """Makes all rows padding: they read slot 0, write nothing, and draw greedily for nobody."""
        self.packed.fill(0)
        self.places.fill(-1)
        self.new_columns.fill(-1)


@dataclass(frozen=True, slots=True)
class DeviceDecode:
    """The same arrays on the device; see `HostDecode`."""

    slots: Tensor
    context_lens: Tensor
    next_positions: Tensor
    places: Tensor
    seeds: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    new_columns: Tensor
    new_blocks: Tensor
    prefixes: Tensor

    def rows(self, first: int, end: int) -> DecodeRows:
        """What the preparation reads for some of the tables."""
        return DecodeRows(
            self.slots, self.context_lens, self.new_columns[first:end], self.new_blocks[first:end]
        )


class DecodeLayout:
    """The places for B rows and G KV groups.

    Args:
        num_rows: B.
        num_groups: G.

    Attributes:
        num_bytes: Length of the buffer.
    """

    def __init__(self, num_rows: int, num_groups: int) -> None:
        row, tables = (num_rows,), (num_groups, num_rows)
        self._layout = PackedLayout(
            {
                "slots": ("int64", row),
                "context_lens": ("int32", row),
                "next_positions": ("int64", row),
                "places": ("int64", row),
                "seeds": ("int64", row),
                "temperature": ("float32", row),
                "top_p": ("float32", row),
                "min_p": ("float32", row),
                "top_k": ("int32", row),
                "new_columns": ("int32", tables),
                "new_blocks": ("int32", tables),
                "prefixes": ("int32", (packed_words(num_rows),)),
            }
        )
        self.num_bytes = self._layout.num_bytes

    def on_host(self, buffer: NDArray[np.uint8]) -> HostDecode:
        """The arrays in the beginning of a buffer."""
        views: dict[str, Any] = self._layout.on_host(buffer)
        return HostDecode(packed=buffer[: self.num_bytes], **views)

    def on_device(self, buffer: Tensor) -> DeviceDecode:
        """The arrays in the beginning of a buffer."""
        return DeviceDecode(**self._layout.on_device(buffer))
