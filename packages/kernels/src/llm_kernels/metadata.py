"""One step's rows as attention and KV write read them; knows nothing about who planned the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

Apart: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a call, or keeps it to run it between two captured pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Decode rows whose block tables begin with the same blocks, in up to G groups; a hint that spares reads.

    Back ends that know no shared prefixes may ignore it: the rows' own tables name all their blocks. All
    tensors lie on the device. What they hold may change between replays of a captured call.

    Attributes:
        prefix_lens: int32 [num_decodes], the tokens that a row shares with its group; 0 where it is in none.
            Less than the row's context.
        member_rows: int32 [num_decodes], the rows of group 0, then those of group 1, and so on; entries past
            the last group's are not read.
        cu_members: int32 [G + 1], prefix sums of the groups' sizes; the first is 0, unused groups have none.
        group_lens: int32 [G], the tokens that a group shares.
    """

    prefix_lens: torch.Tensor
    member_rows: torch.Tensor
    cu_members: torch.Tensor
    group_lens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Flags by which the programs of a call tell each other that a part is done; the call leaves them zero.

    Attributes:
        flags: int32, zeros between calls.
        is_captured: Whether a graph sets them to zero; it alone may use them.
    """

    flags: torch.Tensor
    is_captured: bool


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
        shared_prefix: Decode rows that share their first blocks; None: none do, or nobody looked.
        apart: Where the attention of this step is run, so that whoever captures the step can leave it out;
            None: at once.
        arrivals: Made by the back end that needs them, for all calls on these rows; no two calls at once. One
            capture alone has calls on these rows: it sets the flags to zero.
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
    shared_prefix: SharedPrefix | None = None
    apart: Apart | None = None
    arrivals: Arrivals | None = None
