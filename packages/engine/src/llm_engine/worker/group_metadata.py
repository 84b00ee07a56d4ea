"""One attention metadata for each KV group, read from the slot tables on the device; knows nothing of plans.

What does not depend on the group is shared, and a family of groups takes as many launches as one group.
Shapes: R rows, T tokens, F groups of a family.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from llm_kernels.ops import AttentionMetadata, SharedPrefix
from torch import Tensor

from llm_engine.worker.shared_prefix import layout
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
        shared_prefix: Decode rows that share their first blocks, if any are known to.
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
    shared_prefix: SharedPrefix | None = None


class GroupMetadata:
    """Makes the metadata of each of a model's caches.

    Args:
        tables: The slots' block tables.
        cache_groups: For each cache of the model, its group.
        sharing_groups: The groups whose rows' shared prefixes are looked for.
    """

    def __init__(
        self, tables: SlotTables, cache_groups: Sequence[int], sharing_groups: Collection[int] = ()
    ) -> None:
        self._tables = tables
        self._cache_groups = tuple(cache_groups)
        self._sharing_groups = frozenset(sharing_groups)

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
                    shared_prefix=rows.shared_prefix if group in self._sharing_groups else None,
                )
        return self.by_cache(by_group)

    def by_cache(self, by_group: Mapping[int, AttentionMetadata]) -> list[AttentionMetadata]:
        """The metadata of each cache's group."""
        return [by_group[group] for group in self._cache_groups]

    def shares(self, group: int) -> bool:
        """Whether the shared prefixes of a KV group's rows are looked for."""
        return group in self._sharing_groups


def unpack_prefixes(packed: Tensor, num_rows: int, num_decodes: int | None = None) -> SharedPrefix:
    """The words of `PrefixPlan.pack(num_rows)`, on the device, as attention reads them.

    Args:
        packed: int32.
        num_rows: The rows it was packed for.
        num_decodes: The decode rows of the step, at most so many; None: all.
    """
    prefix_lens, member_rows, cu_members, group_lens = (packed[part] for part in layout(num_rows))
    return SharedPrefix(
        prefix_lens=prefix_lens[:num_decodes],
        member_rows=member_rows[:num_decodes],
        cu_members=cu_members,
        group_lens=group_lens,
    )


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
