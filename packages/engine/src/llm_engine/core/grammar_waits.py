"""The requests of a core that wait for their grammars; knows nothing of how these are compiled.

The workers compile in threads of their own. The core tells them what is wanted and what is over, and asks
between two steps what has finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from llm_distributed import Executor

from llm_engine.grammar.spec import GrammarSpec

WAITS_FOR = "grammar"
"""What requests of the scheduler wait for."""

# How often processes are asked; the own one costs next to nothing.
_POLL_PROCESSES_S = 0.005
_PAUSE_S = 0.001
_MANY_ENDED = 256


class GrammarWaits:
    """Keeps which requests have grammars, and which of them wait.

    Args:
        executor: Started; its workers have `compile_grammars`.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._live: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._faults: dict[str, str] = {}
        self._wanted: list[tuple[str, GrammarSpec]] = []
        self._ended: list[str] = []
        self._asked_s = 0.0
        self._num_checked = 0

    def add(self, request_id: str, spec: GrammarSpec) -> None:
        """A request that needs a grammar before it is admitted."""
        self._live.add(request_id)
        self._waiting[request_id] = self._executor.mesh_size
        self._wanted.append((request_id, spec))

    def end(self, request_ids: Iterable[str]) -> None:
        """Requests that ended, with grammars or without."""
        if not self._live:
            return
        for request_id in request_ids:
            if request_id in self._live:
                self._live.remove(request_id)
                self._waiting.pop(request_id, None)
                self._faults.pop(request_id, None)
                self._ended.append(request_id)

    def finished(self) -> list[tuple[str, str | None]]:
        """The requests whose grammars are there on every rank (None), or failed on one (why), each once.

        Raises:
            CallFailed: A worker could not be asked.
        """
        if not self._wanted and not self._waiting and len(self._ended) < _MANY_ENDED:
            return []
        now_s = time.monotonic()
        if not self._wanted and self._executor.mesh_size > 1 and now_s - self._asked_s < _POLL_PROCESSES_S:
            return []
        self._asked_s = now_s
        wanted, self._wanted = self._wanted, []
        ended, self._ended = self._ended, []
        answers = self._executor.call("compile_grammars", wanted, ended)
        told: list[tuple[str, str | None]] = []
        for request_id, fault in (one for answer in answers for one in answer):
            left = self._waiting.get(request_id)
            if left is None:
                continue  # ended meanwhile
            if fault is not None:
                self._faults.setdefault(request_id, fault)
            if left > 1:
                self._waiting[request_id] = left - 1
                continue
            del self._waiting[request_id]
            told.append((request_id, self._faults.pop(request_id, None)))
        return told

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its grammar."""
        return bool(self._waiting)

    def wait(self, request_id: str, spec: GrammarSpec) -> str | None:
        """Compile the grammar of a request and wait for it, while no other waits; why it failed, or None."""
        self.add(request_id, spec)
        while not (found := self.finished()):
            time.sleep(_PAUSE_S)
        [(_, fault)] = found
        return fault

    def check(self, specs: Sequence[GrammarSpec]) -> list[str | None]:
        """Compile grammars and wait for them, while no other waits; returns why each failed, or None."""
        ids = [f"check-{self._num_checked + place}" for place in range(len(specs))]
        self._num_checked += len(ids)
        for request_id, spec in zip(ids, specs, strict=True):
            self.add(request_id, spec)
        found: dict[str, str | None] = {}
        while len(found) < len(ids):
            found.update(self.finished())
            if len(found) < len(ids):
                time.sleep(_PAUSE_S)
        self.end(ids)
        return [found[request_id] for request_id in ids]
