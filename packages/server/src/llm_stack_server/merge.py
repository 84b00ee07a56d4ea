"""Merges several async iterators into one, in order of arrival. Knows nothing of what they yield."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield ``(source index, item)``; the first error of any source ends all of them.

    Every source is closed when this generator ends, however it ends.
    """
    if len(sources) == 1:
        try:
            async for item in sources[0]:
                yield 0, item
        finally:
            await _close(sources[0])
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(index, source, queue)) for index, source in enumerate(sources)]
    try:
        open_sources = len(sources)
        while open_sources:
            entry = await queue.get()
            if entry is None:
                open_sources -= 1
            elif isinstance(entry, BaseException):
                raise entry
            else:
                yield entry
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int, source: AsyncIterator[T], queue: asyncio.Queue[tuple[int, T] | BaseException | None]
) -> None:
    try:
        async for item in source:
            queue.put_nowait((index, item))
        queue.put_nowait(None)
    except Exception as error:  # noqa: BLE001 -- handed over to the reader, which raises it
        queue.put_nowait(error)
    finally:
        await _close(source)


async def _close(source: AsyncIterator[T]) -> None:
    if isinstance(source, AsyncGenerator):
        await source.aclose()
