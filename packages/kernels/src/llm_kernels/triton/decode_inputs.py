"""Both ends of a decode step in one launch each; knows nothing of plans, graphs or models."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_kernels.decode_rows import DecodeRows, PreparedRows
from llm_kernels.triton.dependent_launch import launch_options, let_later_start, wait_for_earlier
from llm_kernels.triton.launch_sizes import ceil_div

_BLOCK = 512


@triton.jit(do_not_specialize=["new_stride", "places_stride", "num_rows"])  # type: ignore[untyped-decorator]
def _prepare_kernel(
    slots: tl.tensor,
    context_lens: tl.tensor,
    new_columns: tl.tensor,
    new_blocks: tl.tensor,
    token_ids: tl.tensor,
    tables: tl.tensor,
    input_ids: tl.tensor,
    positions: tl.tensor,
    row_tables: tl.tensor,
    places: tl.tensor,
    new_stride: tl.tensor,
    places_stride: tl.tensor,
    num_rows: tl.tensor,
    num_slots: tl.tensor,
    max_tokens: tl.tensor,
    width: tl.tensor,
    block_size: tl.tensor,
    HAS_PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One row and one of its tables, as far as the row's context reaches. Grid (rows, tables)."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0)
    family = tl.program_id(1)
    slot = tl.load(slots + row)
    context = tl.load(context_lens + row)
    position = tl.maximum(context - 1, 0)
    column_added = tl.load(new_columns + family * new_stride + row)
    block_added = tl.load(new_blocks + family * new_stride + row)
    table = tables + (family.to(tl.int64) * num_slots + slot) * width
    if column_added >= 0:
        tl.store(table + column_added, block_added)
    own = row_tables + (family.to(tl.int64) * num_rows + row) * width
    # One entry more than the context fills: where the next checkpoint of a state goes.
    reach = tl.minimum(context // block_size + 1, width)
    for start in range(0, reach, BLOCK):
        column = start + tl.arange(0, BLOCK)
        block = tl.load(table + column, mask=column < reach, other=0)
        tl.store(own + column, tl.where(column == column_added, block_added, block), mask=column < reach)
    if HAS_PLACES:
        column_last = position // block_size
        last = tl.load(table + column_last)
        last = tl.where(column_last == column_added, block_added, last).to(tl.int64)
        place = tl.where(context > 0, last * block_size + position % block_size, -1)
        tl.store(places + family * places_stride + row, place)
    if family == 0:
        tl.store(positions + row, position.to(tl.int64))
        tl.store(input_ids + row, tl.load(token_ids + slot * max_tokens + position).to(tl.int64))


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _store_kernel(
    tokens: tl.tensor,
    faults: tl.tensor,
    places: tl.tensor,
    token_ids: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """BLOCK rows a program."""
    let_later_start(PDL)
    wait_for_earlier(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    token = tl.load(tokens + row, mask=inside, other=0).to(tl.int32)
    fault = tl.load(faults + row, mask=inside, other=0)
    place = tl.load(places + row, mask=inside, other=-1)
    tl.store(token_ids + place, token, mask=inside & (place > 0))
    tl.store(out + row, tl.where(fault != 0, -1, token), mask=inside)


def prepare_decode(
    rows: DecodeRows, token_ids_SM: Tensor, tables_FSW: Tensor, block_size: int, has_places: bool
) -> PreparedRows:
    """Triton back end of `ops.prepare_decode`: a table is copied only as far as its row's context reaches."""
    num_rows, device = len(rows.slots), rows.slots.device
    num_families, num_slots, width = tables_FSW.shape
    input_ids_B = torch.empty(num_rows, dtype=torch.int64, device=device)
    positions_B = torch.empty(num_rows, dtype=torch.int64, device=device)
    tables_FBW = torch.empty((num_families, num_rows, width), dtype=torch.int32, device=device)
    # An even number of columns: each table's row begins at a multiple of 16 bytes, as Triton likes it.
    columns = (num_rows + 1) // 2 * 2 if has_places else 0
    padded = torch.empty((num_families, columns), dtype=torch.int64, device=device)
    places_FB = padded[:, :num_rows]
    if num_rows == 0:
        return PreparedRows(input_ids_B, positions_B, tables_FBW, places_FB)
    _prepare_kernel[(num_rows, num_families)](
        rows.slots,
        rows.context_lens,
        rows.new_columns,
        rows.new_blocks,
        token_ids_SM,
        tables_FSW,
        input_ids_B,
        positions_B,
        tables_FBW,
        places_FB,
        rows.new_columns.stride(0),
        columns,
        num_rows,
        num_slots,
        token_ids_SM.shape[1],
        width,
        block_size,
        HAS_PLACES=has_places,
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(device),
    )
    return PreparedRows(input_ids_B, positions_B, tables_FBW, places_FB)


def store_tokens(tokens_B: Tensor, faults_B: Tensor, places_B: Tensor, token_ids_SM: Tensor) -> Tensor:
    """Triton back end of `ops.store_tokens`."""
    num_rows, device = len(tokens_B), tokens_B.device
    out_B = torch.empty(num_rows, dtype=torch.int32, device=device)
    if num_rows == 0:
        return out_B
    block = 128
    _store_kernel[(ceil_div(num_rows, block),)](
        tokens_B,
        faults_B.view(torch.uint8),
        places_B,
        token_ids_SM,
        out_B,
        num_rows,
        BLOCK=block,
        num_warps=4,
        **launch_options(device),
    )
    return out_B
