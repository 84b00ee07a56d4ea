"""The decode step as one function of a small tensor, fit to be captured; knows nothing of plans or of graphs.

Everything but two numbers a row is read from the slot tables on the device: token ids, block tables and the
places in the KV cache. All sizes follow from the shape of the input and one host integer.
"""

from __future__ import annotations

import numpy as np
import torch
from llm_models.model import Model
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.group_metadata import GroupMetadata, StepRows
from llm_engine.worker.kv_pool import Caches
from llm_engine.worker.slot_tables import SlotTables

# Words a row in the input of a decode step: its slot, its context.
WORDS_PER_ROW = 2


def pack_rows(slots: NDArray[np.int32], context_lens: NDArray[np.int32], padded: int) -> NDArray[np.generic]:
    """The input of a decode step, int64[2 * padded]: slots, then context lengths with the new token.

    Rows past the given ones are padding: slot 0 and context 0, which read the tables and write nothing.
    """
    packed = np.zeros((WORDS_PER_ROW, padded), np.int64)
    packed[0, : len(slots)] = slots
    packed[1, : len(context_lens)] = context_lens
    return packed.reshape(-1)


class DecodeStep:
    """Runs the model on the newest known token of each row.

    Args:
        model: The decoder.
        caches: Its caches' tensors.
        tables: The slots' tokens and block tables.
        group_metadata: Describes the rows to each cache.
        max_rows: Most rows of a step.
    """

    def __init__(
        self,
        model: Model,
        caches: Caches,
        tables: SlotTables,
        group_metadata: GroupMetadata,
        max_rows: int,
    ) -> None:
        self._model = model
        self._caches = caches
        self._tables = tables
        self._group_metadata = group_metadata
        self._cu_query_lens = torch.arange(max_rows + 1, dtype=torch.int32, device=model.device)

    def run(self, packed: Tensor, max_context_len: int) -> Tensor:
        """Computes the hidden states of B rows.

        Args:
            packed: int64[2 * B] on the device, as `pack_rows` makes it.
            max_context_len: Upper bound of the context lengths; it sets grids and table widths.

        Returns:
            [B, hidden size]; those of padding rows mean nothing.
        """
        slots, context_lens = packed.view(WORDS_PER_ROW, -1).unbind(0)
        positions = (context_lens - 1).clamp_min_(0)
        input_ids = self._tables.token_ids[slots, positions].long()
        num_rows = len(slots)
        rows = StepRows(
            slots=slots,
            token_slots=slots,
            positions=positions,
            cu_query_lens=self._cu_query_lens[: num_rows + 1],
            context_lens=context_lens.to(torch.int32),
            padding=context_lens == 0,
            num_decodes=num_rows,
            max_query_len=1,
            max_context_len=max_context_len,
        )
        return self._model.forward(input_ids, self._group_metadata.build(rows), self._caches)
