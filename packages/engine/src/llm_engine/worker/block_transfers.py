"""Copies KV pages on a device, to the host cache and back, as a plan says; knows nothing of contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llm_kvcache import COPY, LOAD, STORE
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.errors import PlanError


@dataclass(frozen=True, slots=True)
class TransferRun:
    """Transfers of one kind that may happen in any order.

    Attributes:
        kind: `COPY`, `STORE` or `LOAD` of `llm_kvcache`.
        sources: Blocks, or slots of the host cache for `LOAD`.
        destinations: Blocks, or slots of the host cache for `STORE`; no two are equal.
    """

    kind: int
    sources: list[int]
    destinations: list[int]


def transfer_runs(moves: NDArray[np.int32]) -> Iterator[TransferRun]:
    """Cuts ordered transfers into runs: a transfer starts a new one where it depends on one before it.

    Args:
        moves: int32 `[m, 3]` of (kind, source, destination).
    """
    run: TransferRun | None = None
    written: set[int] = set()
    for kind, source, destination in moves.tolist():
        depends = destination in written or (kind == COPY and source in written)
        if run is None or kind != run.kind or depends:
            if run is not None:
                yield run
            run, written = TransferRun(kind, [], []), set()
        run.sources.append(source)
        run.destinations.append(destination)
        written.add(destination)
    if run is not None:
        yield run


class BlockTransfers:
    """The host cache of one rank, and copies between it and the device's pages.

    A block of the host cache is a whole page, contiguous, so it crosses the bus in one copy. On a GPU the
    host's memory is pinned and the crossing has a stream of its own: the step waits for what is loaded, not
    for what is stored.

    Args:
        storages: Memory by page, [N, words] each: page p is row p of all of them.
        host_blocks: Blocks of the host cache; 0 for none.
    """

    def __init__(self, storages: Sequence[Tensor], host_blocks: int = 0) -> None:
        self._storages = list(storages)
        self._device = self._storages[0].device
        self._stream: torch.cuda.Stream | None = None
        self._page_bytes = sum(storage[0].nbytes for storage in self._storages)
        is_cuda = self._device.type == "cuda"
        shape = (host_blocks, self._page_bytes)
        self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=is_cuda and host_blocks > 0)
        if is_cuda and host_blocks:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def carry_out(self, moves: NDArray[np.int32]) -> None:
        """Queues transfers in their order, before whatever is queued next on the current stream.

        Args:
            moves: int32 `[m, 3]` of (kind, source, destination).

        Raises:
            PlanError: An unknown kind, or a host transfer without a host cache.
        """
        for run in transfer_runs(moves):
            if run.kind not in (COPY, STORE, LOAD) or (run.kind != COPY and not len(self._host)):
                raise PlanError(f"transfers of kind {run.kind} cannot be carried out here")
            if run.kind == COPY:
                self._scatter(self._gather(run.sources), run.destinations)
            elif run.kind == STORE:
                self._store(run)
            else:
                self._load(run)

    def _gather(self, pages: list[int]) -> list[Tensor]:
        """The contents of pages, [m, words] of each storage."""
        ids = torch.tensor(pages, device=self._device)
        return [storage.index_select(0, ids) for storage in self._storages]

    def _scatter(self, contents: list[Tensor], pages: list[int]) -> None:
        ids = torch.tensor(pages, device=self._device)
        for storage, rows in zip(self._storages, contents, strict=True):
            storage.index_copy_(0, ids, rows)

    def _join(self, contents: list[Tensor]) -> Tensor:
        """uint8 [m, page bytes]."""
        parts = [rows.view(torch.uint8) for rows in contents]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _split(self, joined: Tensor) -> list[Tensor]:
        if len(self._storages) == 1:
            return [joined.view(self._storages[0].dtype)]
        widths = [storage[0].nbytes for storage in self._storages]
        parts = zip(joined.split_with_sizes(widths, dim=1), self._storages, strict=True)
        # A part of a row may not begin where words do; a copy of its own does.
        exact = torch.contiguous_format
        return [part.clone(memory_format=exact).view(storage.dtype) for part, storage in parts]

    def _store(self, run: TransferRun) -> None:
        contents = self._join(self._gather(run.sources))
        if self._stream is None:
            self._host[run.destinations] = contents
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for index, slot in enumerate(run.destinations):
                self._host[slot].copy_(contents[index], non_blocking=True)
        contents.record_stream(self._stream)

    def _load(self, run: TransferRun) -> None:
        if self._stream is None:
            self._scatter(self._split(self._host[run.sources]), run.destinations)
            return
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            shape = (len(run.sources), self._page_bytes)
            contents = torch.empty(shape, dtype=torch.uint8, device=self._device)
            for index, slot in enumerate(run.sources):
                contents[index].copy_(self._host[slot], non_blocking=True)
        current.wait_stream(self._stream)
        contents.record_stream(current)
        self._scatter(self._split(contents), run.destinations)
