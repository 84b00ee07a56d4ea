"""Owns moving tensors from mapped files to where they are needed at the disk's own rate; knows no formats.

Large tensors move in pieces, several at a time, since disks want a deep queue. Bytes are read with `pread`,
which keeps that queue full; page faults of the mapping would read little by little.

- To the CPU in the same dtype: read straight into the destination.
- To the CPU in another dtype: read into a buffer of the thread, cast from there.
- To CUDA: read into pinned buffers, two a thread, and copied on a stream of the thread while the next piece
  is read. Casts run on the device.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llm_models.errors import CorruptFile
from llm_models.loading.mapped_files import MappedFile

PIECE_BYTES = 8 << 20
THREADS = 8
_BUFFERS = 2
# Linux 5.14 and later; other kernels refuse it, which does no harm.
_MADV_POPULATE_WRITE = 23


@dataclass(slots=True)
class _Buffer:
    """Host memory; `drained` lies behind the last copy out of it."""

    bytes: Tensor
    drained: torch.cuda.Event | None = None


@dataclass(slots=True)
class _Lane:
    """What one thread copies through to one device: a stream if the device has them, and buffers in turn."""

    stream: torch.cuda.Stream | None
    buffers: list[_Buffer] = field(default_factory=list)
    turn: int = 0

    def next_buffer(self, size: int) -> _Buffer:
        """The buffer that has rested longest, once it is drained."""
        count = 1 if self.stream is None else _BUFFERS
        if len(self.buffers) < count:
            pinned = self.stream is not None
            self.buffers.append(_Buffer(torch.empty(size, dtype=torch.uint8, pin_memory=pinned)))
            return self.buffers[-1]
        self.turn = (self.turn + 1) % count
        buffer = self.buffers[self.turn]
        if buffer.drained is not None:
            buffer.drained.synchronize()
        return buffer


class Transfer:
    """Copies views of mapped files into tensors, in pieces, with a pool of threads.

    May be used from several threads at once. What fits into one piece is copied by the caller's own thread.
    """

    def __init__(self, *, threads: int = THREADS, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-weights")
        self._local = threading.local()

    def copy(self, file: MappedFile, view: Tensor, out: Tensor) -> None:
        """Writes `view` into `out`, casting on the way; all is in place when it returns.

        Args:
            file: The file that `view` lies in.
            view: Any view of the file's mapping.
            out: Of the same shape; any device and dtype, contiguous or not.

        Raises:
            CorruptFile: The file has become shorter since it was opened.
            OSError: The disk fails.
        """
        # Memory of `out` may still be in use by earlier work on the caller's stream.
        start = _recorded(torch.cuda.current_stream(out.device)) if out.is_cuda else None
        pieces = list(_pieces(view, out, self._piece_bytes))
        if len(pieces) == 1:
            _wait(self._move(file, *pieces[0], start))
            return
        moves = [self._pool.submit(self._move, file, *piece, start) for piece in pieces]
        try:
            for move in moves:
                _wait(move.result())
        except BaseException:
            for move in moves:
                move.cancel()
            raise

    def _move(
        self, file: MappedFile, view: Tensor, out: Tensor, start: torch.cuda.Event | None
    ) -> torch.cuda.Event | None:
        """Copies one piece; on CUDA it is there once the returned event has come."""
        if out.device.type == "cpu":
            self._move_on_host(file, view, out)
            return None
        lane = self._lane(out.device)
        buffer = lane.next_buffer(self._piece_bytes)
        staged = _typed(buffer.bytes, view)
        _fill(file, view, staged)
        if lane.stream is None:
            out.copy_(staged)
            return None
        with torch.cuda.device(out.device), torch.cuda.stream(lane.stream):
            if start is not None:
                lane.stream.wait_event(start)
            if staged.dtype == out.dtype and out.is_contiguous():
                out.copy_(staged, non_blocking=True)
            else:
                out.copy_(staged.to(out.device, non_blocking=True))
            buffer.drained = _recorded(lane.stream)
        return buffer.drained

    def _move_on_host(self, file: MappedFile, view: Tensor, out: Tensor) -> None:
        if view.is_contiguous() and (view.dtype != out.dtype or not out.is_contiguous()):
            buffer = self._lane(out.device).next_buffer(self._piece_bytes)
            staged = _typed(buffer.bytes, view)
            _fill(file, view, staged)
            out.copy_(staged)
        else:
            _fill(file, view, out)

    def _lane(self, device: torch.device) -> _Lane:
        lanes: dict[torch.device, _Lane] = self._local.__dict__.setdefault("lanes", {})
        if device not in lanes:
            lanes[device] = _Lane(_stream(device))
        return lanes[device]


def _pieces(view: Tensor, out: Tensor, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cuts a pair of equal shape into pairs of at most `limit` bytes of the view."""
    if view.numel() == 0:
        return
    if view.is_contiguous() and out.is_contiguous():
        view, out = view.view(-1), out.view(-1)
    row_bytes = view[:1].numel() * view.element_size() if view.dim() else 0
    if row_bytes * (len(view) if view.dim() else 0) <= limit:
        yield view, out
    elif row_bytes > limit:
        for row, out_row in zip(view, out, strict=True):
            yield from _pieces(row, out_row, limit)
    else:
        rows = limit // row_bytes
        for start in range(0, len(view), rows):
            yield view[start : start + rows], out[start : start + rows]


def _fill(file: MappedFile, view: Tensor, out: Tensor) -> None:
    """Copies a view into host memory; for a contiguous view `out` must be contiguous and of its dtype."""
    offset = file.offset(view)
    if offset is not None and view.is_contiguous():
        _read(file, offset, out)
        return
    if offset is not None:
        # Columns or a transposed view: have the disk fetch the whole span before pages are touched.
        last = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
        os.posix_fadvise(file.descriptor, offset, (last + 1) * view.element_size(), os.POSIX_FADV_WILLNEED)
    out.copy_(view)


def _read(file: MappedFile, offset: int, out: Tensor) -> None:
    """Reads the bytes from `offset` on into contiguous host memory."""
    _populate(out)
    target = memoryview(out.view(-1).view(torch.uint8).numpy().data)
    done = 0
    while done < len(target):
        count = os.preadv(file.descriptor, [target[done:]], offset + done)
        if count == 0:
            raise CorruptFile(file.path, None, f"ends at byte {offset + done}: it has become shorter")
        done += count


def _populate(out: Tensor) -> None:
    """Has the kernel back the memory in one go: fresh pages cost half as much as one fault each."""
    if out.nbytes < 1 << 20:
        return
    start = out.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    length = out.data_ptr() + out.nbytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)


def _typed(buffer: Tensor, view: Tensor) -> Tensor:
    """The front of a byte buffer as a contiguous tensor of the view's dtype and shape."""
    return buffer[: view.numel() * view.element_size()].view(view.dtype).view(view.shape)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _wait(event: torch.cuda.Event | None) -> None:
    if event is not None:
        event.synchronize()
