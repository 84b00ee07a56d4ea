"""Ends work the moment its client leaves. Knows nothing of what the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from llm_stack_server.asgi import Receive
from llm_stack_server.errors import ClientDisconnected

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; cancel it as soon as the client is gone.

    The request body must have been read already: what ``receive`` gives then is the disconnect.

    Raises:
        ClientDisconnected: the client left first. ``work`` has ended, its clean-up included.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnected
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
