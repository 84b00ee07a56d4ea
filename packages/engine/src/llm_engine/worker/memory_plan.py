"""What a device's memory is spent on, as plain numbers; knows nothing of how they were found.

`kv_sizing` measures them on a device before the KV cache is allocated, `llm_engine.capacity` predicts them
without one. What nothing else claims is the KV cache's.
"""

from __future__ import annotations

import msgspec

from llm_engine.worker.kv_groups import KVLayout

RESERVE_BYTES = 256 * 2**20
"""For the allocator's fragmentation, workspaces of libraries and kernels that are loaded later."""

# A step gathers the known tokens of the rows with penalties and marks which count: two tensors of int64 and
# three of bool, [rows, longest context].
_PENALTY_BYTES = 19
# Slot tables hold int32, and one token more than the longest sequence; block tables are cut to multiples.
_TABLE_ITEM_BYTES = 4
_TABLE_WIDTH_UNIT = 4


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one device.

    Attributes:
        device_bytes: The device's memory.
        limit_bytes: What the engine may use of it: `gpu_memory_fraction`.
        weights_bytes: The model's parameters on this rank.
        other_bytes: What else is taken already: the driver's context, loaded kernels, other processes.
        tables_bytes: The slots' token and block tables.
        step_bytes: The most that one step takes beyond all this.
        graphs_bytes: Set aside for captured steps.
        reserve_bytes: Set aside for what cannot be known before.
    """

    device_bytes: int
    limit_bytes: int
    weights_bytes: int
    other_bytes: int
    tables_bytes: int
    step_bytes: int
    graphs_bytes: int
    reserve_bytes: int = RESERVE_BYTES

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; below 0 where the rest does not fit."""
        return self.limit_bytes - self.used_bytes

    @property
    def used_bytes(self) -> int:
        """Everything but the KV cache."""
        return (
            self.weights_bytes
            + self.other_bytes
            + self.tables_bytes
            + self.step_bytes
            + self.graphs_bytes
            + self.reserve_bytes
        )


def tables_bytes(layout: KVLayout, num_slots: int, max_model_len: int) -> int:
    """Bytes of the token table and the block tables of all slots."""
    tokens = max_model_len + 1
    entries = tokens
    for group in layout.groups:
        blocks = -(-tokens // group.block_size)
        entries += -(-blocks // _TABLE_WIDTH_UNIT) * _TABLE_WIDTH_UNIT
    return num_slots * entries * _TABLE_ITEM_BYTES


def penalty_bytes(num_rows: int, max_model_len: int) -> int:
    """Bytes that counting the tokens of rows with penalties takes, beside the counts."""
    return num_rows * max_model_len * _PENALTY_BYTES
