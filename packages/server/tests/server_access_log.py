"""Reads what an application writes to its access log, through a real pipe."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import contextmanager

from llm_stack_server.observing.outlets import Outlets


class Lines:
    """The lines of one log; whole once the log is closed."""

    def __init__(self) -> None:
        self.raw = ""

    def records(self, style):
        """Each line as its fields; those of text are strings."""
        lines = self.raw.splitlines()
        if style == "json":
            return [json.loads(line) for line in lines]
        return [dict(word.split("=", 1) for word in shlex.split(line)) for line in lines]


@contextmanager
def logged(app):
    """The log of what happens inside, as the application's options want it."""
    context = app.state.context
    read_end, write_end = os.pipe()
    outlets = Outlets(context.settings, context.journal, context.metrics, write_end)
    lines = Lines()
    try:
        yield lines
    finally:
        outlets.close()
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            lines.raw = pipe.read().decode("ascii")
