"""Rows packed one after the other as `varlen_attention` takes them, read on the host; knows no back end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch

from llm_kernels.errors import InvalidArgument

Bias: TypeAlias = torch.Tensor | Callable[[int, int], torch.Tensor]
"""float [H, at least the queries, at least the keys] by position within the row, or what gives
[H, queries, keys] for these two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow:
    """Where the queries and keys of a row lie."""

    queries: slice
    keys: slice

    @property
    def num_queries(self) -> int:
        """Query tokens of the row."""
        return int(self.queries.stop - self.queries.start)

    @property
    def num_keys(self) -> int:
        """Keys of the row."""
        return int(self.keys.stop - self.keys.start)


def read_packed_rows(
    cu_query_lens: torch.Tensor, cu_key_lens: torch.Tensor, num_queries: int, num_keys: int
) -> list[PackedRow]:
    """The rows; waits for the device.

    Raises:
        InvalidArgument: The prefix sums do not rise from 0 to at most the number of tokens.
    """
    query_starts, key_starts = (
        _read("cu_query_lens", cu_query_lens, num_queries),
        _read("cu_key_lens", cu_key_lens, num_keys),
    )
    return [
        PackedRow(
            queries=slice(query_starts[i], query_starts[i + 1]), keys=slice(key_starts[i], key_starts[i + 1])
        )
        for i in range(len(query_starts) - 1)
    ]


def bias_of(bias: Bias | None, num_heads: int, row: PackedRow) -> torch.Tensor | None:
    """The bias of one row, float32 [H, queries, keys].

    Raises:
        InvalidArgument: The bias has another shape.
    """
    if bias is None:
        return None
    if isinstance(bias, torch.Tensor):
        values = bias[:, : row.num_queries, : row.num_keys] if bias.ndim == 3 else bias
    else:
        values = bias(row.num_queries, row.num_keys)
    wanted = (num_heads, row.num_queries, row.num_keys)
    if values.shape != wanted:
        raise InvalidArgument("bias", f"a row needs {list(wanted)}, got {list(values.shape)}")
    return values.float()


def _read(field: str, prefix_sums: torch.Tensor, num_tokens: int) -> list[int]:
    starts: list[int] = prefix_sums.tolist()
    rising = all(a <= b for a, b in pairwise(starts))
    if not starts or starts[0] != 0 or starts[-1] > num_tokens or not rising:
        raise InvalidArgument(field, f"expected prefix sums from 0 up to at most {num_tokens}, got {starts}")
    return starts
