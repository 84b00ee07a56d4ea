"""Waits for a key of the terminal, or for a time. Where there is no terminal, only for the time."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Keyboard:
    """The keys that were pressed meanwhile."""

    def __init__(self, fd: int | None) -> None:
        """Read from ``fd``; None: there is none to read from."""
        self._fd = fd

    def wait(self, seconds: float) -> str:
        """The next key, as soon as it is pressed; "" where none was within ``seconds``."""
        if self._fd is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        return os.read(self._fd, 1).decode(errors="replace") if ready else ""


@contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """The terminal's keys, one by one and unseen; afterwards the terminal is as before."""
    try:
        import termios
        import tty
    except ImportError:  # Windows: Ctrl-C alone ends the program
        yield Keyboard(None)
        return
    if not sys.stdin.isatty():
        yield Keyboard(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield Keyboard(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
