"""Copies KV blocks on a device, to the host cache and back, as a plan says; knows nothing of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llm_kvcache import COPY, LOAD, STORE
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.errors import PlanError

KVCaches = Sequence[tuple[Tensor, Tensor]]


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
    """The host cache of one rank, and copies between it and the device's blocks.

    A block of the host cache is contiguous over all layers, so a block crosses the bus in one copy. On a GPU
    the host's memory is pinned and the crossing has a stream of its own: the step waits for what is loaded,
    not for what is stored.

    Args:
        kv_caches: Key and value cache of every layer, each `[N, ...]` with equal block sizes in bytes.
        host_blocks: Blocks of the host cache; 0 for none.
    """

    def __init__(self, kv_caches: KVCaches, host_blocks: int = 0) -> None:
        self._caches = [cache for pair in kv_caches for cache in pair]
        self._device = self._caches[0].device
        self._stream: torch.cuda.Stream | None = None
        first = self._caches[0]
        shape = (host_blocks, len(self._caches), first[0].numel())
        is_cuda = self._device.type == "cuda"
        self._host = torch.empty(shape, dtype=first.dtype, pin_memory=is_cuda and host_blocks > 0)
        if is_cuda and host_blocks:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @staticmethod
    def host_bytes(kv_caches: KVCaches, host_blocks: int) -> int:
        """Bytes of host memory that so many blocks take."""
        return host_blocks * sum(cache[0].nbytes for pair in kv_caches for cache in pair)

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

    def _gather(self, blocks: list[int]) -> Tensor:
        """The contents of blocks, `[m, caches, elements]` on the device."""
        ids = torch.tensor(blocks, device=self._device)
        rows = [cache.index_select(0, ids).flatten(1) for cache in self._caches]
        return torch.stack(rows, dim=1)

    def _scatter(self, contents: Tensor, blocks: list[int]) -> None:
        ids = torch.tensor(blocks, device=self._device)
        for index, cache in enumerate(self._caches):
            cache.index_copy_(0, ids, contents[:, index].view(-1, *cache.shape[1:]))

    def _store(self, run: TransferRun) -> None:
        contents = self._gather(run.sources)
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
            self._scatter(self._host[run.sources], run.destinations)
            return
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            shape = (len(run.sources), *self._host.shape[1:])
            contents = torch.empty(shape, dtype=self._host.dtype, device=self._device)
            for index, slot in enumerate(run.sources):
                contents[index].copy_(self._host[slot], non_blocking=True)
        current.wait_stream(self._stream)
        contents.record_stream(current)
        self._scatter(contents, run.destinations)
