"""The decode step as one function of device tensors, fit to be captured; knows nothing of plans or of graphs.

Everything but a few numbers a row is read from the slot tables on the device: token ids, block tables and
the places in the KV cache. All sizes follow from the number of rows.
"""

from __future__ import annotations

import torch
from llm_kernels.metadata import Apart
from llm_kernels.ops import AttentionMetadata, prepare_decode, store_tokens
from llm_models.model import Model
from torch import Tensor

from llm_engine.worker.decode_layout import DeviceDecode
from llm_engine.worker.drawing import draw_rows
from llm_engine.worker.group_metadata import GroupMetadata, unpack_prefixes
from llm_engine.worker.kv_pool import Caches
from llm_engine.worker.slot_tables import SlotTables


class DecodeStep:
    """Runs the model on the newest known token of each row.

    Args:
        model: The decoder.
        caches: Its caches' tensors.
        tables: The slots' tokens and block tables.
        group_metadata: Knows which cache belongs to which KV group.
        max_rows: Most rows of a step.
        sampled_vocab_size: Ids at and above it are never drawn; None: all may be.
        apart: Where attention is run; see `AttentionMetadata`.
    """

    def __init__(
        self,
        model: Model,
        caches: Caches,
        tables: SlotTables,
        group_metadata: GroupMetadata,
        max_rows: int,
        sampled_vocab_size: int | None = None,
        apart: Apart | None = None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._tables = tables
        self._group_metadata = group_metadata
        self._sampled_vocab_size = sampled_vocab_size
        self._apart = apart
        device = model.device
        self._cu_query_lens = torch.arange(max_rows + 1, dtype=torch.int32, device=device)

    def hidden(self, inputs: DeviceDecode, *, shares: bool = False) -> Tensor:
        """Computes the hidden states of B rows.

        Args:
            inputs: The rows.
            shares: Whether attention reads shared prefixes once for all their rows.

        Returns:
            [B, hidden size]; those of padding rows mean nothing.
        """
        by_group: dict[int, AttentionMetadata] = {}
        num_rows = len(inputs.slots)
        prefixes = unpack_prefixes(inputs.prefixes, num_rows) if shares else None
        input_ids = inputs.slots
        first = 0
        for family in self._tables.families:
            prepared = prepare_decode(
                inputs.rows(first, first + len(family.groups)),
                self._tables.token_ids,
                family.tables,
                family.block_size,
                has_places=family.has_slots,
            )
            first += len(family.groups)
            input_ids = prepared.input_ids
            for index, group in enumerate(family.groups):
                by_group[group] = AttentionMetadata(
                    cu_query_lens=self._cu_query_lens[: num_rows + 1],
                    context_lens=inputs.context_lens,
                    block_tables=prepared.block_tables[index],
                    slot_mapping=prepared.places[index],
                    positions=prepared.positions,
                    num_decodes=num_rows,
                    max_query_len=1,
                    max_context_len=self._tables.max_tokens,
                    block_size=family.block_size,
                    shared_prefix=prefixes if self._group_metadata.shares(group) else None,
                    apart=self._apart,
                )
        return self._model.forward(input_ids, self._group_metadata.by_cache(by_group), self._caches)

    def tokens(self, inputs: DeviceDecode, *, shares: bool = False, filters: bool = False) -> Tensor:
        """Draws the next token of each row and stores it in the token table.

        For rows that nothing but temperature (0 is greedy) and filters concerns.

        Args:
            inputs: The rows.
            shares: As for `hidden`.
            filters: Whether top-k, top-p and min-p are heeded.

        Returns:
            int32[B], -1 where a row's logits were broken; those of padding rows mean nothing.
        """
        hidden = self.hidden(inputs, shares=shares)
        logits = self._model.raw_logits(hidden)[:, : self._sampled_vocab_size]
        tokens, faults = draw_rows(logits, inputs, filters=filters)
        return store_tokens(tokens, faults, inputs.places, self._tables.token_ids)
