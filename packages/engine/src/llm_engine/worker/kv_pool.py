"""The memory of the KV cache: pages, and each cache's view of them; knows nothing of who holds a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from llm_models.caches import CacheSpec
from torch import Tensor

from llm_engine.worker.cache_layout import aligned
from llm_engine.worker.kv_groups import KVLayout

Caches: TypeAlias = Sequence[tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class KVPool:
    """N pages and the caches in them.

    Attributes:
        caches: For each cache of the model its tensors, [N, ...] each. Those of different groups overlay one
            another, and then the stride of the first dimension is a page.
        storages: The same memory by page, [N, words] each and contiguous: a page is row p of all of them.
    """

    caches: tuple[tuple[Tensor, ...], ...]
    storages: tuple[Tensor, ...]


def allocate_pool(
    specs: Sequence[CacheSpec], layout: KVLayout, num_pages: int, dtype: torch.dtype, device: torch.device
) -> KVPool:
    """Allocates zeroed pages.

    With one group there is nothing to overlay, and each cache is a tensor of its own.

    Args:
        specs: The caches of the model.
        layout: From `choose_layout` for the same caches.
        num_pages: Pages of the pool, N.
        dtype: The model's.
        device: Where to.
    """
    if len(layout.groups) == 1:
        size = layout.groups[0].block_size
        caches = tuple(_separate(spec, size, num_pages, dtype, device) for spec in specs)
        return KVPool(caches, tuple(as_words(tensor) for cache in caches for tensor in cache))
    pool = torch.zeros((num_pages, layout.page_bytes), dtype=torch.uint8, device=device)
    views: dict[int, tuple[Tensor, ...]] = {}
    for group in layout.groups:
        offset = 0
        for index in group.caches:
            views[index], offset = _overlay(pool, offset, specs[index], group.block_size, dtype)
    return KVPool(tuple(views[index] for index in range(len(specs))), (as_words(pool),))


def as_words(tensor: Tensor) -> Tensor:
    """A contiguous tensor [N, ...] as [N, words], words as wide as can be: what copies move fastest."""
    rows = tensor.view(len(tensor), -1).view(torch.uint8)
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


def _separate(
    spec: CacheSpec, block_size: int, num_pages: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    pairs = zip(spec.shapes(num_pages, block_size), spec.dtypes(dtype), strict=True)
    return tuple(torch.zeros(shape, dtype=of, device=device) for shape, of in pairs)


def _overlay(
    pool: Tensor, offset: int, spec: CacheSpec, block_size: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], int]:
    """A cache's tensors in a pool uint8 [N, page bytes], and where in a page they end."""
    views = []
    for shape, of in zip(spec.shapes(len(pool), block_size), spec.dtypes(dtype), strict=True):
        num_bytes = torch.Size(shape[1:]).numel() * of.itemsize
        views.append(pool[:, offset : offset + num_bytes].view(of).view(shape))
        offset += aligned(num_bytes)
    return tuple(views), offset
