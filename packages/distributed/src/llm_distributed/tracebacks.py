"""How an exception is told to someone in another process; knows nothing of executors."""

from __future__ import annotations

import traceback


def last_line(error: BaseException) -> str:
    """The line that names the error: its type and message, in one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())
