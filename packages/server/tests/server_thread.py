"""Serves an application in a thread of its own, for clients that block."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from llm_stack_server.http_protocol import BoundedHeadProtocol

START_S = 30.0


@contextlib.contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """The address at which `app` is served until the block ends."""
    config = uvicorn.Config(
        app, port=port, http=BoundedHeadProtocol, log_level="warning", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline_s = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive(), "the server ended"
            assert time.monotonic() < deadline_s, "the server does not start"
            time.sleep(0.01)
        address = server.servers[0].sockets[0].getsockname()
        yield f"http://{address[0]}:{address[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
