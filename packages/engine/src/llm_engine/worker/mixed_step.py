"""A step of decode rows and prompts as one function of device tensors; knows nothing of plans or of graphs.

All sizes follow from its key: token ids, block tables and places in the KV cache are read from the slot
tables, lengths from the step's own words.
"""

from __future__ import annotations

from llm_kernels.metadata import Apart
from llm_kernels.ops import store_tokens
from llm_models.model import Model
from torch import Tensor

from llm_engine.worker.drawing import draw_rows
from llm_engine.worker.group_metadata import GroupMetadata, StepRows
from llm_engine.worker.kv_pool import Caches
from llm_engine.worker.mixed_layout import DeviceMixed, MixedKey
from llm_engine.worker.slot_tables import SlotTables


class MixedStep:
    """Runs the model on the tokens of decode rows and prompts, and draws.

    Args:
        model: The decoder.
        caches: Its caches' tensors.
        tables: The slots' tokens and block tables.
        group_metadata: Describes the rows to each cache.
        sampled_vocab_size: Ids at and above it are never drawn; None: all may be.
        apart: Where attention is run; see `AttentionMetadata`.
    """

    def __init__(
        self,
        model: Model,
        caches: Caches,
        tables: SlotTables,
        group_metadata: GroupMetadata,
        sampled_vocab_size: int | None = None,
        apart: Apart | None = None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._tables = tables
        self._group_metadata = group_metadata
        self._sampled_vocab_size = sampled_vocab_size
        self._apart = apart

    def tokens(self, key: MixedKey, inputs: DeviceMixed) -> Tensor:
        """Draws the next token of each row and stores it in the token table.

        For rows that nothing but temperature (0 is greedy) and filters concerns.

        Returns:
            int32[R], -1 where a row's logits were broken; those of rows without a place mean nothing.
        """
        positions = inputs.positions.clamp_min(0)
        rows = StepRows(
            slots=inputs.slots,
            token_slots=inputs.token_slots,
            positions=positions,
            cu_query_lens=inputs.cu_query_lens,
            context_lens=inputs.context_lens,
            padding=inputs.positions < 0,
            num_decodes=key.decodes,
            max_query_len=key.tokens,
            max_context_len=self._tables.max_tokens,
        )
        metadata = self._group_metadata.build(rows)
        for one in metadata:
            one.apart = self._apart
        input_ids = self._tables.token_ids[inputs.token_slots, positions].long()
        hidden_TE = self._model.forward(input_ids, metadata, self._caches)
        logits = self._model.raw_logits(hidden_TE.index_select(0, inputs.last_tokens))
        tokens, faults = draw_rows(logits[:, : self._sampled_vocab_size], inputs, filters=key.filters)
        return store_tokens(tokens, faults, inputs.places, self._tables.token_ids)
