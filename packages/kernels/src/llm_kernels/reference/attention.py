"""Attention over a paged cache in torch, float32 inside; the meaning of `paged_attention`.

Rows with one query token are gathered and computed together, the others row by row in blocks of queries, so
that neither many rows nor a long prompt costs more memory than `_MAX_ELEMENTS` allows. Of a block table only
the entries that hold a key some query sees are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from llm_kernels.checks import check_attention, check_cache_scales, check_scoring
from llm_kernels.errors import InvalidArgument
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.attention_scores import Scoring, attend

_MAX_ELEMENTS = 1 << 24

Scales: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]


def paged_attention(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    chunk: int | None,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    causal: bool,
    distance_bias: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Reference of `ops.paged_attention`. Reads the lengths on the host, so it waits for the device."""
    scoring = Scoring(
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        chunk=chunk,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        causal=causal,
        distance_bias=distance_bias,
    )
    check_attention(out_THV, query_THD, key_cache, value_cache, metadata)
    check_scoring(query_THD, sliding_window, soft_cap, chunk, sinks, alibi_slopes, causal, distance_bias)
    check_cache_scales(key_cache, key_scale, value_scale)
    attend_rows(out_THV, query_THD, key_cache, value_cache, metadata, scoring, (key_scale, value_scale))


def attend_rows(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scoring: Scoring,
    scales: Scales = (None, None),
) -> None:
    """The rows of a step, after the checks of the tensors; checks what the rows name before any write."""
    rows = list(_read_rows(metadata, scoring, query_THD.shape[0], key_cache.shape[0], key_cache.shape[1]))
    for row in rows:
        if row.context == 0:
            out_THV[row.begin : row.end] = 0
        elif row.end - row.begin > 1:
            _attend_row(
                out_THV, query_THD, key_cache, value_cache, metadata.block_tables, row, scoring, scales
            )
    single = [row for row in rows if row.context > 0 and row.end - row.begin == 1]
    row_elements = key_cache.shape[1] * key_cache.shape[2] * max(key_cache.shape[3], value_cache.shape[3])
    for batch in _batches(single, _MAX_ELEMENTS // row_elements):
        _attend_batch(
            out_THV, query_THD, key_cache, value_cache, metadata.block_tables, batch, scoring, scales
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row with query tokens: where they lie, its keys, and the run of table entries that hold them."""

    index: int
    begin: int
    end: int
    context: int
    first_key: int
    first_block: int
    end_block: int

    @property
    def num_blocks(self) -> int:
        return self.end_block - self.first_block


def _read_rows(
    metadata: AttentionMetadata, scoring: Scoring, num_tokens: int, num_blocks: int, block_size: int
) -> Iterator[_Row]:
    """The rows that have query tokens, checked."""
    starts = metadata.cu_query_lens.tolist()
    for index, context in enumerate(metadata.context_lens.tolist()):
        begin, end = starts[index], starts[index + 1]
        if not 0 <= begin <= end <= num_tokens:
            raise InvalidArgument("cu_query_lens", f"row {index} spans tokens {begin}..{end} of {num_tokens}")
        if begin == end:
            continue
        if scoring.causal and 0 < context < end - begin:
            raise InvalidArgument(
                "context_lens", f"{context} tokens are fewer than the row's {end - begin} queries"
            )
        first_key = scoring.first_key(context - (end - begin)) if scoring.causal else 0
        row = _Row(
            index=index,
            begin=begin,
            end=end,
            context=context,
            first_key=first_key,
            first_block=first_key // block_size,
            end_block=-(-context // block_size),
        )
        _check_blocks(metadata.block_tables, row, num_blocks)
        yield row


def _check_blocks(block_tables: torch.Tensor, row: _Row, num_blocks: int) -> None:
    if block_tables.shape[1] < row.end_block:
        raise InvalidArgument("block_tables", f"a row of {row.context} tokens needs {row.end_block} blocks")
    blocks = block_tables[row.index, row.first_block : row.end_block]
    if blocks.device.type == "cpu" and bool(((blocks < 0) | (blocks >= num_blocks)).any()):
        raise InvalidArgument("block_tables", f"block ids must lie in [0, {num_blocks})")


def _attend_row(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    row: _Row,
    scoring: Scoring,
    scales: Scales,
) -> None:
    """One row, in blocks of its queries, each over the keys it sees."""
    blocks = block_tables[row.index, row.first_block : row.end_block].long()
    origin = row.first_block * key_cache.shape[1]
    held = slice(row.first_key - origin, row.context - origin)
    key_CKD = _restored(key_cache[blocks].flatten(0, 1)[held], scales[0])
    value_CKV = _restored(value_cache[blocks].flatten(0, 1)[held], scales[1])
    key_pos = torch.arange(row.first_key, row.context, device=query_THD.device)
    offset = row.context - row.end  # position of a token less its place in the step
    block = max(1, _MAX_ELEMENTS // (query_THD.shape[1] * key_CKD.shape[0]))
    for begin in range(row.begin, row.end, block):
        end = min(begin + block, row.end)
        keys = slice(None)
        if scoring.causal:
            keys = slice(scoring.first_key(begin + offset) - row.first_key, end + offset - row.first_key)
        out_THV[begin:end] = attend(
            query_THD[None, begin:end],
            key_CKD[None, keys],
            value_CKV[None, keys],
            torch.arange(begin + offset, end + offset, device=query_THD.device)[None],
            key_pos[None, keys],
            scoring,
        )[0].to(out_THV.dtype)


def _attend_batch(
    out_THV: torch.Tensor,
    query_THD: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    rows: list[_Row],
    scoring: Scoring,
    scales: Scales,
) -> None:
    """Rows of one query token each, padded to the widest of them."""
    device, block_size = query_THD.device, key_cache.shape[1]
    index, token, context, first_key, first_block, last_block = torch.tensor(
        [(r.index, r.begin, r.context, r.first_key, r.first_block, r.end_block - 1) for r in rows],
        device=device,
    ).unbind(1)
    width = max(row.num_blocks for row in rows)
    entries = first_block[:, None] + torch.arange(width, device=device)
    blocks = block_tables[index[:, None], torch.minimum(entries, last_block[:, None])].long()
    key_pos = first_block[:, None] * block_size + torch.arange(width * block_size, device=device)
    held = (key_pos >= first_key[:, None]) & (key_pos < context[:, None])
    out_BQHV = attend(
        query_THD[token, None],
        _restored(key_cache[blocks].flatten(1, 2), scales[0]),
        # What lies beside a row's keys may be NaN, which a weight of 0 would not hide.
        _restored(value_cache[blocks].flatten(1, 2), scales[1]).masked_fill(~held[:, :, None, None], 0.0),
        context[:, None] - 1,
        key_pos,
        scoring,
        held,
    )
    out_THV[token] = out_BQHV[:, 0].to(out_THV.dtype)


def _restored(x: torch.Tensor, scale_K: torch.Tensor | None) -> torch.Tensor:
    """What a cache of keys or values [..., K, D] stands for, float32."""
    return x.float() if scale_K is None else x.float() * scale_K[:, None]


def _batches(rows: list[_Row], max_blocks: int) -> Iterator[list[_Row]]:
    """Rows of like width together, each batch of at most `max_blocks` blocks (or one row)."""
    batch: list[_Row] = []
    for row in sorted(rows, key=lambda r: r.num_blocks):
        if batch and (
            (len(batch) + 1) * row.num_blocks > max_blocks or row.num_blocks > 2 * batch[0].num_blocks + 4
        ):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
