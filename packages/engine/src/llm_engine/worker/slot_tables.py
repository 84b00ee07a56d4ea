"""Device tensors indexed by slot: token ids and block tables; knows nothing of sampling or of models.

The token table is the one place where a row's tokens live. The sampler writes each drawn token into it on the
device, so the next step reads it there before the host has seen it. Penalties and prompt logprobs read it
too, so nothing else has to be kept up to date by slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from llm_scheduler import NewRow, Ragged
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.errors import PlanError


@dataclass(slots=True)
class TableUpdate:
    """Flat positions and values to write into the block tables before a step."""

    positions: NDArray[np.int64]
    values: NDArray[np.int32]


class SlotTables:
    """What the device knows of every slot.

    Args:
        num_slots: Number of slots, S.
        max_model_len: Longest sequence in tokens.
        block_size: Tokens in a KV block.
        device: Where the tables live.

    Attributes:
        token_ids: int32[S, max_model_len + 1] on the device.
        block_tables: int32[S, blocks of max_model_len + 1 tokens] on the device.
        num_blocks: int32[S] on the host: length of each block table.
        in_use: bool[S] on the host.
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.block_size = block_size
        # One column more than the longest sequence: a row that ended unseen by the scheduler may run one step
        # further.
        self.max_tokens = max_model_len + 1
        self.max_blocks = -(-self.max_tokens // block_size)
        self.token_ids = torch.zeros((num_slots, self.max_tokens), dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((num_slots, self.max_blocks), dtype=torch.int32, device=device)
        self.num_blocks = np.zeros(num_slots, np.int32)
        self.in_use = np.zeros(num_slots, np.bool_)

    def release(self, slots: NDArray[np.int32]) -> None:
        """Gives slots back; what the device holds of them is never read again."""
        self.in_use[slots] = False
        self.num_blocks[slots] = 0

    def admit(self, row: NewRow) -> None:
        """Takes a slot for a row; its tokens follow by `write_tokens`.

        Raises:
            PlanError: The slot does not exist or the row is longer than the table.
        """
        if not 0 <= row.slot < self.num_slots:
            raise PlanError(f"slot {row.slot} is outside 0 to {self.num_slots - 1}")
        if not 0 < len(row.token_ids) <= self.max_tokens:
            raise PlanError(
                f"request {row.request_id}: {len(row.token_ids)} tokens do not fit {self.max_tokens}"
            )
        self.in_use[row.slot] = True
        self.num_blocks[row.slot] = 0

    def write_tokens(self, slot: int, tokens: Tensor) -> None:
        """Writes a row's known tokens, int32[n] on the device, from position 0."""
        self.token_ids[slot, : len(tokens)].copy_(tokens)

    def append_blocks(self, slots: NDArray[np.int32], new_blocks: Ragged) -> TableUpdate:
        """Lengthens the block tables of distinct slots on the host.

        The caller writes the update to the device.

        Raises:
            PlanError: A table would grow beyond the longest sequence; nothing was changed.
        """
        counts = np.diff(new_blocks.offsets)
        starts = self.num_blocks[slots]
        if counts.size and int((starts + counts).max()) > self.max_blocks:
            raise PlanError(f"a block table would be longer than {self.max_blocks} blocks")
        self.num_blocks[slots] += counts
        first = slots.astype(np.int64) * self.max_blocks + starts - new_blocks.offsets[:-1]
        positions = np.repeat(first, counts) + np.arange(len(new_blocks.values), dtype=np.int64)
        return TableUpdate(positions, np.asarray(new_blocks.values, np.int32))
