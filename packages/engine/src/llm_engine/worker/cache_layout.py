"""Chooses the KV groups of a model, their block sizes and the page that fits them; knows nothing of tensors.

All groups draw from one pool, so the page is as large as the largest block, and what smaller blocks leave of
it is lost. Caches of one kind are therefore cut into groups of about equal bytes: 10 layers of full attention
and 52 with a window become one group of 10 and six of 8 or 9. A state is much larger than a block of 16
tokens; blocks of attention beside states grow until both fill a page.

Several ways to cut are compared by the bytes that one sequence of a usual length would take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from llm_models.caches import (
    CacheSpec,
    CrossCacheSpec,
    KVCacheSpec,
    LatentCacheSpec,
    StateCacheSpec,
    stored_as,
)

from llm_engine.worker.errors import InvalidOption, WorkerError
from llm_engine.worker.kv_groups import GroupKind, KVGroup, KVLayout

# Tensors within a page begin at multiples of it: what the widest loads of kernels want.
PAGE_ALIGNMENT = 256
# Each group has block tables of its own to fill and to upload.
_MAX_GROUPS = 16
# A layout with fewer groups is preferred while it costs at most this much more.
_TOLERANCE = 1.1
_USUAL_TOKENS = 8192
_LARGEST_BLOCK = 1024
# Without attention there is nothing to compare a checkpoint's bytes with.
_LONE_STATE_INTERVAL = 512
_SHORTEST_STATE_INTERVAL = 256
_LONGEST_STATE_INTERVAL = 4096
# A checkpoint may take as many bytes as the keys and values of so many times its tokens.
_CHECKPOINT_SHARE = 2


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """What the layout depends on beside the model.

    Attributes:
        dtype: The model's.
        block_size: Tokens of an attention block, a power of two.
        max_tokens: Longest sequence.
        prefix_caching: Whether checkpoints of states are of use.
        state_interval: Tokens from one checkpoint of states to the next; None: chosen.
    """

    dtype: torch.dtype
    block_size: int
    max_tokens: int
    prefix_caching: bool = True
    state_interval: int | None = None


def caches_in(kv_cache_dtype: str, caches: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
    """A model's caches with keys and values in the number format of an option.

    Args:
        kv_cache_dtype: "auto" (the model's) or "fp8" (e4m3, with the scales that a checkpoint has).
        caches: The model's.

    Raises:
        InvalidOption: Another name, or "fp8" for a model that caches no keys and values: latents and
            recurrent states have no such form.
    """
    if kv_cache_dtype == "auto":
        return tuple(caches)
    if kv_cache_dtype != "fp8":
        raise InvalidOption("kv_cache_dtype", f'must be "auto" or "fp8": {kv_cache_dtype!r}')
    if not any(isinstance(spec, KVCacheSpec) for spec in caches):
        raise InvalidOption("kv_cache_dtype", "the model caches no keys and values that could be fp8")
    return stored_as(caches, torch.float8_e4m3fn)


def choose_layout(caches: Sequence[CacheSpec], options: LayoutOptions) -> KVLayout:
    """The groups of a model's caches and the bytes of a page.

    Raises:
        WorkerError: The model caches nothing that follows its tokens.
        InvalidOption: `state_interval` is no multiple of the block size.
    """
    kinds = _sort_by_kind(caches, options)
    if not any(kind.name != "cross" for kind in kinds):
        raise WorkerError("the model caches nothing of its tokens")
    interval = _state_interval(kinds, options)
    if len(kinds) == 1:
        kind = kinds[0]
        size = interval if kind.name == "state" else options.block_size
        group = KVGroup(kind=kind.name, block_size=size, span=kind.span, caches=kind.caches)
        page_bytes = sum(spec.bytes_per_block(size, options.dtype) for spec in caches)
        return KVLayout(groups=(group,), page_bytes=page_bytes)
    candidates = list(_candidates(kinds, interval, options))
    few = [one for one in candidates if one.num_groups <= _MAX_GROUPS] or candidates
    least = min(one.cost for one in few)
    good = [one for one in few if one.cost <= _TOLERANCE * least]
    return min(good, key=lambda one: (one.num_groups, one.block_size, one.cost)).layout(kinds, interval)


def bytes_in_page(spec: CacheSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of a cache's block in a page that it shares, each tensor aligned."""
    total = 0
    for shape, of in zip(spec.shapes(1, block_size), spec.dtypes(dtype), strict=True):
        total += aligned(torch.Size(shape).numel() * of.itemsize)
    return total


def aligned(num_bytes: int) -> int:
    """The next multiple of the alignment within pages."""
    return -(-num_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Kind:
    """Caches that may be in one group: their specs and indices."""

    name: GroupKind
    span: int
    caches: tuple[int, ...]
    specs: tuple[CacheSpec, ...]

    def bytes_of(self, block_size: int, dtype: torch.dtype) -> list[int]:
        return [bytes_in_page(spec, block_size, dtype) for spec in self.specs]

    def pages(self, num_tokens: int, block_size: int, interval: int) -> float:
        """Blocks that a sequence holds in one group of this kind, half of one for the partial last."""
        if self.name == "state":
            return 1 + num_tokens / interval
        kept = min(num_tokens, self.span) if self.span else num_tokens
        return kept / block_size + 0.5


@dataclass(frozen=True, slots=True)
class _Candidate:
    block_size: int
    page_bytes: int
    cuts: tuple[tuple[tuple[int, ...], ...], ...]
    cost: float

    @property
    def num_groups(self) -> int:
        return sum(len(cut) for cut in self.cuts)

    def layout(self, kinds: Sequence[_Kind], interval: int) -> KVLayout:
        groups = [
            KVGroup(
                kind=kind.name,
                block_size=interval if kind.name == "state" else self.block_size,
                span=kind.span,
                caches=tuple(kind.caches[index] for index in members),
            )
            for kind, cut in zip(kinds, self.cuts, strict=True)
            for members in cut
        ]
        return KVLayout(groups=tuple(groups), page_bytes=self.page_bytes)


def _sort_by_kind(caches: Sequence[CacheSpec], options: LayoutOptions) -> list[_Kind]:
    """The kinds in a fixed order: those that keep all tokens first, states and encoder tokens last."""
    found: dict[tuple[GroupKind, int], list[int]] = {}
    for index, spec in enumerate(caches):
        found.setdefault(_kind_of(spec, options.max_tokens), []).append(index)
    order: tuple[GroupKind, ...] = ("full", "latent", "window", "chunk", "state", "cross")
    return [
        _Kind(name, span, tuple(members), tuple(caches[index] for index in members))
        for (name, span), members in sorted(
            found.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]


def _kind_of(spec: CacheSpec, max_tokens: int) -> tuple[GroupKind, int]:
    match spec:
        case KVCacheSpec(window=int(window)) if window <= max_tokens:
            return "window", window
        case KVCacheSpec(chunk=int(chunk)) if chunk <= max_tokens:
            return "chunk", chunk
        case LatentCacheSpec():
            return "latent", 0
        case StateCacheSpec():
            return "state", 0
        case CrossCacheSpec():
            return "cross", 0
        case _:  # Of all tokens; or no sequence is long enough to leave the window.
            return "full", 0


def _state_interval(kinds: Sequence[_Kind], options: LayoutOptions) -> int:
    """Tokens from one checkpoint to the next."""
    size = options.block_size
    if options.state_interval is not None:
        if options.state_interval < 1 or options.state_interval % size:
            raise InvalidOption("state_interval", f"must be a multiple of {size}: {options.state_interval}")
        return options.state_interval
    most = _power_of_two(options.max_tokens + 1, size)
    if not options.prefix_caching:
        return most  # One block lasts for the whole sequence.
    state_bytes = kv_bytes = 0
    for kind in kinds:
        if kind.name == "state":
            state_bytes += sum(kind.bytes_of(size, options.dtype))
        elif kind.name != "cross":
            kv_bytes += sum(kind.bytes_of(size, options.dtype))
    wanted = _LONE_STATE_INTERVAL
    if kv_bytes:
        wanted = state_bytes * size // (_CHECKPOINT_SHARE * kv_bytes)
        wanted = min(max(wanted, _SHORTEST_STATE_INTERVAL), _LONGEST_STATE_INTERVAL)
    return min(_power_of_two(wanted, size), most)


def _power_of_two(least: int, unit: int) -> int:
    """The smallest `unit * 2**n` of at least so much."""
    size = unit
    while size < least:
        size *= 2
    return size


def _candidates(kinds: Sequence[_Kind], interval: int, options: LayoutOptions) -> Iterator[_Candidate]:
    tokens = min(options.max_tokens, _USUAL_TOKENS)
    for block_size in _block_sizes(kinds, interval, options):
        sizes = [kind.bytes_of(block_size, options.dtype) for kind in kinds]
        pages = {
            _largest(cut, of_kind)
            for of_kind in sizes
            for cut in (_cut(of_kind, count) for count in range(1, min(len(of_kind), _MAX_GROUPS) + 1))
        }
        for page_bytes in pages:
            if page_bytes < max(max(of_kind) for of_kind in sizes):
                continue
            cuts = tuple(_cut_to(of_kind, page_bytes) for of_kind in sizes)
            blocks = sum(
                len(cut) * kind.pages(tokens, block_size, interval)
                for kind, cut in zip(kinds, cuts, strict=True)
            )
            yield _Candidate(block_size, page_bytes, cuts, page_bytes * blocks)


def _block_sizes(kinds: Sequence[_Kind], interval: int, options: LayoutOptions) -> Iterator[int]:
    """Attention blocks: as configured, and beside states larger ones too, since hits are coarse anyway."""
    size = options.block_size
    yield size
    if any(kind.name == "state" for kind in kinds):
        while size < min(interval, _LARGEST_BLOCK) and interval % (2 * size) == 0:
            size *= 2
            yield size


def _cut(sizes: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Cuts caches into so many groups of about equal bytes: the largest first, each to the smallest group."""
    groups: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        group = totals.index(min(totals))
        groups[group].append(index)
        totals[group] += sizes[index]
    return tuple(tuple(sorted(group)) for group in groups)


def _cut_to(sizes: Sequence[int], page_bytes: int) -> tuple[tuple[int, ...], ...]:
    """The fewest groups that fit a page, which holds the largest cache."""
    count = -(-sum(sizes) // page_bytes)
    while _largest(cut := _cut(sizes, count), sizes) > page_bytes:
        count += 1
    return cut


def _largest(cut: tuple[tuple[int, ...], ...], sizes: Sequence[int]) -> int:
    return max(sum(sizes[index] for index in group) for group in cut)
