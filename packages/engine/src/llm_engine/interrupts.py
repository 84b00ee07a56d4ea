"""Owns the postponing of Ctrl-C to a moment when the engine's state is whole; knows nothing of the engine."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class DeferredInterrupt:
    """While entered, Ctrl-C is noted, and raised by `check` only; a second one is raised at once.

    Changes nothing outside the main thread, or where the program handles SIGINT in a way of its own.
    """

    def __init__(self) -> None:
        self._pending = False
        self._installed = False

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raise the `KeyboardInterrupt` that came meanwhile, if one did."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._pending:
            raise KeyboardInterrupt
        self._pending = True
