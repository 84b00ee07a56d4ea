"""The event loop of a server's processes, and waiting for the first of two. Knows nothing of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return None
    return uvloop.new_event_loop


async def either(first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]) -> bool:
    """Wait for one of the two and cancel the other; True where ``first`` ended (its errors are raised)."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
