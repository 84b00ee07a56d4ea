"""How recurrent ops walk the rows of a step: read a row's state, cut at block borders, write states back.

Entry i of a row's block table holds the state after the last computed token of tokens i * B to
(i + 1) * B - 1. A row whose step covers positions c to c + n - 1 reads entry (c - 1) // B (zeros when c is 0)
and writes the entry of its last token and the state at each border in between. Knows nothing about what a
state means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from llm_kernels.errors import InvalidArgument
from llm_kernels.metadata import AttentionMetadata

Tokens: TypeAlias = slice | torch.Tensor
"""Which packed tokens: a slice, or int64 indices."""


class Step(Protocol):
    """One token of each of R rows."""

    def __call__(
        self, tokens: Tokens, state: torch.Tensor, fresh: torch.Tensor, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and new states.

        Args:
            tokens: The R tokens.
            state: float32 [R, *state]; the call may overwrite it.
            fresh: bool [R], rows whose token is the first of its sequence; their states are zeros.
        """


class Scan(Protocol):
    """A run of tokens of one row."""

    def __call__(
        self, tokens: slice, state: torch.Tensor, fresh: bool, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and the state after the last token.

        Args:
            tokens: The run.
            state: float32 [*state]; the call may overwrite it.
            fresh: Whether the first token is the first of its sequence.
        """


# On the CPU: states of this many numbers are updated where they lie, row by row; smaller ones in groups of
# rows that stay in the cache of a core.
_LARGE_STATE = 2**17
_STATES_AT_ONCE = 2**19


@dataclass(frozen=True, slots=True)
class _Span:
    """A run of a row's tokens that is scanned at once; `block` takes the state after it, None keeps it."""

    begin: int
    end: int
    fresh: bool
    block: int | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's tokens, the block it goes on from (None: zeros), and its runs; a padding row has none."""

    tokens: slice
    source: int | None
    spans: list[_Span]


def run_state_rows(
    out: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    step: Step,
    scan: Scan,
    max_span: int,
) -> None:
    """Computes all rows: those with one token together by `step`, the others in runs by `scan`.

    A step of decode rows only (`max_query_len` 1, as many tokens as rows) makes no decision on device values,
    so that it can be captured in a CUDA graph; others read the lengths on the host. On the CPU the block ids
    are checked before anything is written. Outputs of padding rows are zeros.

    Args:
        out: [T, ...].
        state_cache: [N, *state].
        metadata: The rows. When `max_query_len` is 1 and T == R, row r is token r.
        block_size: Tokens from one checkpoint to the next.
        step: Computes one token of many rows.
        scan: Computes a run of tokens of one row.
        max_span: Longest run given to `scan`; bounds its memory.
    """
    num_rows = metadata.context_lens.numel()
    if metadata.max_query_len == 1 and out.shape[0] == num_rows:
        _decode(out, state_cache, metadata, num_rows, block_size, step)
        return
    rows = list(_prefill_rows(metadata, state_cache.shape[0], block_size, max_span))
    if metadata.num_decodes > 0:
        _decode(out, state_cache, metadata, metadata.num_decodes, block_size, step)
    for row in rows:
        _prefill(out, state_cache, row, scan)


def _decode(
    out: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    num_rows: int,
    block_size: int,
    step: Step,
) -> None:
    if num_rows == 0:
        return
    context_R = metadata.context_lens[:num_rows].long()
    tables = metadata.block_tables[:num_rows]
    if context_R.device.type == "cpu":
        _decode_on_host(out, state_cache, context_R, tables, block_size, step)
    else:
        _decode_on_device(out, state_cache, context_R, tables, block_size, step)


def _decode_on_host(
    out: torch.Tensor,
    state_cache: torch.Tensor,
    context_R: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
    step: Step,
) -> None:
    """Padding rows are left out."""
    tokens: Tokens = slice(0, context_R.numel())
    if bool((context_R <= 0).any()):
        out[tokens] = 0
        tokens = (context_R > 0).nonzero().squeeze(1)
        context_R, tables = context_R[tokens], tables[tokens]
        if tokens.numel() == 0:
            return
    _require_entries(tables, int(context_R.max()), block_size)
    source, target = _entries(context_R, tables, block_size)
    _require_blocks(torch.stack((source, target)), state_cache.shape[0])
    fresh = context_R == 1
    num_rows, size = context_R.numel(), state_cache[0].numel()
    if size >= _LARGE_STATE and state_cache.dtype == torch.float32:
        blocks = zip(source.tolist(), target.tolist(), strict=True)
        for row, (before, after) in enumerate(blocks):
            row_tokens = _part(tokens, row, row + 1)
            _step_in_place(out, state_cache, row_tokens, before, after, fresh[row : row + 1], step)
        return
    group = max(1, _STATES_AT_ONCE // size)
    for begin in range(0, num_rows, group):
        part = slice(begin, min(begin + group, num_rows))
        at = _part(tokens, part.start, part.stop)
        state = _read(state_cache, source[part], fresh[part])
        out_R, state = step(at, state, fresh[part])
        out[at] = out_R.to(out.dtype)
        state_cache.index_copy_(0, target[part], state.to(state_cache.dtype))


def _part(tokens: Tokens, begin: int, end: int) -> Tokens:
    return slice(begin, end) if isinstance(tokens, slice) else tokens[begin:end]


def _step_in_place(
    out: torch.Tensor,
    state_cache: torch.Tensor,
    tokens: Tokens,
    source: int,
    target: int,
    fresh: torch.Tensor,
    step: Step,
) -> None:
    """One row on the cache itself: a large state is worth more than the calls of its row."""
    state = state_cache[target : target + 1]
    if bool(fresh):
        state.zero_()
    elif source != target:
        state.copy_(state_cache[source : source + 1])
    out_R, after = step(tokens, state, fresh)
    out[tokens] = out_R.to(out.dtype)
    if after is not state:
        state.copy_(after)


def _decode_on_device(
    out: torch.Tensor,
    state_cache: torch.Tensor,
    context_R: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
    step: Step,
) -> None:
    """Shapes do not depend on values: a padding row does the work of the first true row once more."""
    num_rows = context_R.numel()
    held_R = context_R > 0
    rows = torch.arange(num_rows, device=context_R.device)
    tokens = torch.where(held_R, rows, held_R.int().argmax())
    source, target = _entries(context_R[tokens].clamp_min(1), tables[tokens], block_size)
    source, target = (x.clamp(0, state_cache.shape[0] - 1) for x in (source, target))
    before = state_cache.index_select(0, target)
    fresh = context_R[tokens] <= 1
    out_R, state = step(tokens, _read(state_cache, source, fresh), fresh)
    out[:num_rows] = torch.where(held_R.view(-1, *[1] * (out_R.ndim - 1)), out_R, 0).to(out.dtype)
    # Padding rows alone write back what they found.
    state = torch.where(held_R.any(), state.to(state_cache.dtype), before)
    state_cache.index_copy_(0, target, state)


def _entries(
    context_R: torch.Tensor, tables: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that hold the states before and after the last token of rows of 1 token or more."""
    at = torch.stack(((context_R - 2).clamp_min(0), context_R - 1), dim=1) // block_size
    blocks = tables.gather(1, at).long()
    return blocks[:, 0], blocks[:, 1]


def _read(state_cache: torch.Tensor, source: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    state = state_cache.index_select(0, source).float()
    return state.masked_fill_(fresh.view(-1, *[1] * (state.ndim - 1)), 0)


def _require_entries(tables: torch.Tensor, context: int, block_size: int) -> None:
    needed = -(-context // block_size)
    if tables.shape[1] < needed:
        raise InvalidArgument("block_tables", f"a row of {context} tokens needs {needed} entries")


def _require_blocks(blocks: torch.Tensor, num_blocks: int) -> None:
    if blocks.numel() and (int(blocks.min()) < 0 or int(blocks.max()) >= num_blocks):
        raise InvalidArgument("block_tables", f"block ids must lie in [0, {num_blocks})")


def _prefill_rows(
    metadata: AttentionMetadata, num_blocks: int, block_size: int, max_span: int
) -> Iterator[_Row]:
    """The rows past the decode rows that have tokens to compute, their blocks checked."""
    starts = metadata.cu_query_lens.tolist()
    contexts = metadata.context_lens.tolist()
    for index in range(metadata.num_decodes, len(contexts)):
        begin, end, context = starts[index], starts[index + 1], contexts[index]
        if begin == end or context == 0:
            yield _Row(slice(begin, end), None, [])
            continue
        computed = context - (end - begin)
        if computed < 0:
            raise InvalidArgument("context_lens", f"{context} tokens are fewer than the row's {end - begin}")
        _require_entries(metadata.block_tables, context, block_size)
        table = metadata.block_tables[index].tolist()
        source = table[(computed - 1) // block_size] if computed > 0 else None
        spans = list(_spans(begin, end, computed, block_size, max_span, table))
        blocks = [block for block in (source, *(span.block for span in spans)) if block is not None]
        _require_blocks(torch.tensor(blocks), num_blocks)
        yield _Row(slice(begin, end), source, spans)


def _spans(
    begin: int, end: int, computed: int, block_size: int, max_span: int, table: list[int]
) -> Iterator[_Span]:
    """Cuts a row at the borders of its blocks and where a run grows too long."""
    position = computed
    while begin < end:
        border = (position // block_size + 1) * block_size
        length = min(end - begin, border - position, max_span)
        begin, position = begin + length, position + length
        writes = begin == end or position == border
        block = table[(position - 1) // block_size] if writes else None
        yield _Span(begin - length, begin, position == length, block)


def _prefill(out: torch.Tensor, state_cache: torch.Tensor, row: _Row, scan: Scan) -> None:
    if not row.spans:
        out[row.tokens] = 0
        return
    if row.source is None:
        shape = state_cache.shape[1:]
        state = torch.zeros(shape, dtype=torch.float32, device=state_cache.device)
    else:
        state = state_cache[row.source].to(torch.float32, copy=True)
    for span in row.spans:
        tokens = slice(span.begin, span.end)
        out_N, state = scan(tokens, state, span.fresh)
        out[tokens] = out_N.to(out.dtype)
        if span.block is not None:
            state_cache[span.block] = state.to(state_cache.dtype)
