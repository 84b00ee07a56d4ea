"""One attention metadata for each KV group, read from the slot tables on the device; knows nothing of plans.

What does not depend on the group is shared, and a family of groups takes as many launches as one group.
Shapes: R rows, T tokens, F groups of a family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from llm_kernels.ops import AttentionMetadata
from torch import Tensor

from llm_engine.worker.slot_tables import SlotTables, TableFamily, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """A step's rows, whatever the group; tensors on the device.

    Attributes:
        slots: int64[R].
        token_slots: int64[T], the slot of each token.
        positions: int64[T].
        cu_query_lens: int32[R + 1].
        context_lens: int32[R].
        padding: bool[T], tokens that have no place in the cache; None: all have one.
        num_decodes: Leading rows with one token.
        max_query_len: Upper bound of a row's tokens.
        max_context_len: Upper bound of `context_lens`.
    """

    slots: Tensor
    token_slots: Tensor
    positions: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    padding: Tensor | None = None
    num_decodes: int
    max_query_len: int
    max_context_len: int


class GroupMetadata:
    """Makes the metadata of each of a model's caches.

    Args:
        tables: The slots' block tables.
        cache_groups: For each cache of the model, its group.
    """

    def __init__(self, tables: SlotTables, cache_groups: Sequence[int]) -> None:
        self._tables = tables
        self._cache_groups = tuple(cache_groups)

    def build(self, rows: StepRows) -> list[AttentionMetadata]:
        """One metadata a cache; caches of one group share theirs."""
        by_group: dict[int, AttentionMetadata] = {}
        for family in self._tables.families:
            width = min(family.width(rows.max_context_len), family.tables.shape[2])
            tables_FRB = family.tables[:, :, :width].index_select(1, rows.slots)
            slots_FT = _slot_mapping(family, rows)
            for index, group in enumerate(family.groups):
                by_group[group] = AttentionMetadata(
                    cu_query_lens=rows.cu_query_lens,
                    context_lens=rows.context_lens,
                    block_tables=tables_FRB[index],
                    slot_mapping=slots_FT[index],
                    positions=rows.positions,
                    num_decodes=rows.num_decodes,
                    max_query_len=rows.max_query_len,
                    max_context_len=rows.max_context_len,
                    block_size=family.block_size,
                )
        return [by_group[group] for group in self._cache_groups]


def _slot_mapping(family: TableFamily, rows: StepRows) -> Tensor:
    """int64[F, T], the places of the tokens; [F, 0] where tokens have none of their own."""
    positions, size = rows.positions, family.block_size
    if not family.has_slots:
        return positions.new_empty((len(family.groups), 0))
    blocks_FT = family.tables[:, rows.token_slots, positions // size]
    # An even number of columns: each group's row begins at a multiple of 16 bytes, as Triton likes it.
    shape = (len(family.groups), round_up(len(positions), 2))
    slots_FT = torch.empty(shape, dtype=torch.int64, device=positions.device)[:, : len(positions)]
    torch.add(positions % size, blocks_FT, alpha=size, out=slots_FT)
    return slots_FT if rows.padding is None else slots_FT.masked_fill_(rows.padding, -1)
