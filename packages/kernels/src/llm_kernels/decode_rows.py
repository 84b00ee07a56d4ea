"""What a decode step's rows are before and after their preparation; knows nothing of back ends or plans.

Shapes: B rows, F block tables of one block size, W blocks in a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one token each, as the host sends them.

    Attributes:
        slots: int64[B]; distinct, but padding rows may repeat any.
        context_lens: int32[B], tokens with the new one; 0 for padding rows.
        new_columns: int32[F, B], where in its slot's block table a row adds a block; -1: it adds none.
        new_blocks: int32[F, B], the block to add there.
    """

    slots: Tensor
    context_lens: Tensor
    new_columns: Tensor
    new_blocks: Tensor


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """What the model needs of these rows.

    Attributes:
        input_ids: int64[B], the newest token of each row.
        positions: int64[B], its position; 0 for padding rows.
        block_tables: int32[F, B, W]; entries past a row's context mean nothing.
        places: int64[F, B], block * block_size + offset of the new token, -1 for padding rows; [F, 0] where
            tokens have no place of their own.
    """

    input_ids: Tensor
    positions: Tensor
    block_tables: Tensor
    places: Tensor
