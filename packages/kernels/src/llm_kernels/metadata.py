"""One step's rows as attention and KV write read them; knows nothing about who planned the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class AttentionMetadata:
    """Rows of a step over a paged KV cache. All tensors lie on the device of the query.

    Attributes:
        cu_query_lens: int32 [R + 1], prefix sums of the query tokens of each row; the first is 0.
        context_lens: int32 [R], tokens in the cache after this step's write, its query tokens included. A row
            with 0 (padding) yields zeros.
        block_tables: int32 [R, max_blocks], block ids in order; entries past a row's context are not read,
            nor those wholly before what a window or chunk lets the row's queries see.
        slot_mapping: int64 [T], block * block_size + offset where a token's KV goes; -1 writes nothing.
        positions: int64 [T], position of each token in its sequence.
        num_decodes: Leading rows with exactly one query token.
        max_query_len: Upper bound of the query tokens of a row.
        max_context_len: Upper bound of `context_lens`.
        block_size: Tokens of a block; for recurrent states, which no tensor's shape tells it, tokens from one
            checkpoint to the next. 0 where nobody asks.
    """

    cu_query_lens: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    positions: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_context_len: int
    block_size: int = 0
