"""Hands items to a thread through a queue that is bounded: who puts never waits. Knows no items."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_LOG = logging.getLogger("llm_stack_server")

T = TypeVar("T")


class BackgroundQueue(Generic[T]):
    """Runs ``handle`` over batches of items, in order, in a thread of its own.

    What finds the queue full is dropped and counted: a slow reader costs its own items, and nothing else.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[T]], int],
        on_dropped: Callable[[int], None],
        *,
        capacity: int,
        batch: int,
        linger_s: float = 0.0,
    ) -> None:
        """Start the thread.

        Args:
            name: Of the thread.
            handle: Takes items, at most ``batch``, and tells how many of them it lost.
            on_dropped: Is told how many items were dropped or lost; from any thread.
            capacity: Items that may wait.
            batch: The most items at once.
            linger_s: How long a batch that is not full waits for more.
        """
        self._handle = handle
        self._on_dropped = on_dropped
        self._capacity = capacity
        self._batch = batch
        self._linger_s = linger_s
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        # A daemon: an item that cannot be handled must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Add an item, or drop it where the queue is full or closed."""
        with self._changed:
            has_room = len(self._items) < self._capacity and not self._is_closing
            if has_room:
                self._items.append(item)
                if len(self._items) in (1, self._batch):
                    self._changed.notify()
        if not has_room:
            self._on_dropped(1)

    def close(self, timeout_s: float) -> None:
        """Take no more; wait until all is handled, at most ``timeout_s``. What is left then is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            left = len(self._items)
            self._items.clear()
        if left:
            self._on_dropped(left)

    def _run(self) -> None:
        while batch := self._next():
            try:
                lost = self._handle(batch)
            except Exception:  # noqa: BLE001 -- the thread must go on; what was lost is counted
                _LOG.exception("%s: %d items were lost", self._thread.name, len(batch))
                lost = len(batch)
            if lost:
                self._on_dropped(lost)

    def _next(self) -> list[T]:
        """The next batch; empty when closed and all is handled."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closing)
            if self._linger_s:
                self._changed.wait_for(
                    lambda: len(self._items) >= self._batch or self._is_closing, self._linger_s
                )
            count = min(len(self._items), self._batch)
            return [self._items.popleft() for _ in range(count)]
