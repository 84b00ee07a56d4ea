"""The inputs of a decode step in plain torch; knows nothing of back ends, plans or graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_kernels.decode_rows import DecodeRows, PreparedRows


def prepare_decode(
    rows: DecodeRows, token_ids_SM: Tensor, tables_FSW: Tensor, block_size: int, has_places: bool
) -> PreparedRows:
    """As `llm_kernels.ops.prepare_decode`."""
    num_families = tables_FSW.shape[0]
    slots_B = rows.slots
    positions_B = (rows.context_lens.long() - 1).clamp_min_(0)
    family, row = (rows.new_columns >= 0).nonzero(as_tuple=True)
    tables_FSW[family, slots_B[row], rows.new_columns[family, row].long()] = rows.new_blocks[family, row]
    tables_FBW = tables_FSW.index_select(1, slots_B)
    input_ids_B = token_ids_SM[slots_B, positions_B].long()
    if not has_places:
        return PreparedRows(input_ids_B, positions_B, tables_FBW, positions_B.new_empty((num_families, 0)))
    blocks_FB = tables_FBW[:, torch.arange(len(slots_B), device=slots_B.device), positions_B // block_size]
    places_FB = blocks_FB.long() * block_size + positions_B % block_size
    places_FB.masked_fill_(rows.context_lens == 0, -1)
    return PreparedRows(input_ids_B, positions_B, tables_FBW, places_FB)


def store_tokens(tokens_B: Tensor, faults_B: Tensor, places_B: Tensor, token_ids_SM: Tensor) -> Tensor:
    """As `llm_kernels.ops.store_tokens`."""
    found_B = tokens_B.to(torch.int32)
    stored_B = places_B > 0
    token_ids_SM.view(-1)[places_B[stored_B]] = found_B[stored_B]
    return found_B.masked_fill(faults_B, -1)
