"""Compiles grammars in threads of their own, within a time limit; knows nothing of workers or requests' rows.

Both libraries let other threads run while they compile. A compilation cannot be stopped: what is over the
time limit is given up, and its thread goes on without anybody waiting for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_engine.grammar.backend import InvalidGrammar
from llm_engine.grammar.compiler import Grammar, GrammarCompiler
from llm_engine.grammar.spec import GrammarSpec

COMPILE_LIMIT_S = 10.0
QUEUE_LIMIT_S = 60.0
_NUM_THREADS = 2
# So many compilations that were given up may still be running; no thread is added beyond.
_MAX_GIVEN_UP = 4


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar to compile, and who waits for it; without a spec, what comes before the first grammar."""

    spec: GrammarSpec | None
    queued_s: float
    keys: list[str] = field(default_factory=list)
    started_s: float | None = None
    grammar: Grammar | None = None
    fault: str | None = None
    is_done: bool = False
    is_given_up: bool = False


class BackgroundCompiler:
    """Compiles for keys, such as ids of requests, and keeps their grammars until they are released.

    All methods belong to one thread; they never wait.

    Args:
        make_compiler: Called in a thread, at the first use.
        compile_limit_s: A compilation that takes longer fails.
        queue_limit_s: So long may one wait for a thread.
    """

    def __init__(
        self,
        make_compiler: Callable[[], GrammarCompiler],
        *,
        compile_limit_s: float = COMPILE_LIMIT_S,
        queue_limit_s: float = QUEUE_LIMIT_S,
    ) -> None:
        self._make_compiler = make_compiler
        self._compile_limit_s, self._queue_limit_s = compile_limit_s, queue_limit_s
        self._compiler: GrammarCompiler | None = None
        self._making = threading.Lock()
        self._wake = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._under_way: list[_Job] = []
        self._kept: dict[str, Grammar] = {}
        self._num_threads = self._num_given_up = 0
        self._is_closed = False

    @property
    def compiler(self) -> GrammarCompiler:
        """The compiler, made now if it was not."""
        with self._making:
            if self._compiler is None:
                self._compiler = self._make_compiler()
            return self._compiler

    def prepare(self) -> None:
        """Begin with what every grammar needs, such as a table of the vocabulary."""
        self._begin(_Job(None, time.monotonic()))

    def begin(self, key: str, spec: GrammarSpec) -> None:
        """Begin to compile; keys that want the same grammar share the work."""
        for job in self._under_way:
            if job.spec == spec and not job.is_given_up:
                job.keys.append(key)
                return
        job = _Job(spec, time.monotonic(), [key])
        if self._compiler is not None and (found := self._compiler.find(spec)) is not None:
            job.grammar, job.is_done = found, True
            self._under_way.append(job)
            return
        self._begin(job)

    def finished(self) -> list[tuple[str, str | None]]:
        """The keys whose grammar is there (None) or failed (why), each once."""
        now_s, told = time.monotonic(), list[tuple[str, str | None]]()
        for job in list(self._under_way):
            was_done = job.is_done  # once: its thread may end it at any moment
            fault = job.fault if was_done else self._overdue(job, now_s)
            if not was_done and fault is None:
                continue
            self._under_way.remove(job)
            told += [(key, fault) for key in job.keys]
            if job.grammar is not None and fault is None:
                self._kept.update(dict.fromkeys(job.keys, job.grammar))
        return told

    def grammar(self, key: str) -> Grammar | None:
        """The grammar of a key that finished; None where there is none."""
        return self._kept.get(key)

    def release(self, key: str) -> None:
        """Forget a key."""
        self._kept.pop(key, None)
        for job in list(self._under_way):
            if key not in job.keys:
                continue
            job.keys.remove(key)
            with self._wake:
                if not job.keys and job in self._queue:
                    self._queue.remove(job)
                    self._under_way.remove(job)

    def close(self) -> None:
        """End the threads that have nothing to do."""
        with self._wake:
            self._is_closed = True
            self._queue.clear()
            self._wake.notify_all()

    def _begin(self, job: _Job) -> None:
        self._under_way.append(job)
        with self._wake:
            self._queue.append(job)
            if self._num_threads - self._num_given_up < _NUM_THREADS:
                self._add_thread()
            self._wake.notify()

    def _add_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._work, daemon=True, name="grammars").start()

    def _overdue(self, job: _Job, now_s: float) -> str | None:
        """Give a job up that is over its time; returns why."""
        with self._wake:
            if job.is_done:
                return None  # ended this very moment; it is told next time
            if job.started_s is None:
                if now_s - job.queued_s <= self._queue_limit_s:
                    return None
                self._queue.remove(job)
                return "the compilation had to wait too long for others"
            if now_s - job.started_s <= self._compile_limit_s:
                return None
            job.is_given_up = True
            self._num_given_up += 1
            if self._queue and self._num_given_up <= _MAX_GIVEN_UP:
                self._add_thread()
            return f"its compilation takes longer than {self._compile_limit_s:g} s"

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._is_closed:
                    self._wake.wait()
                if self._is_closed:
                    return
                job = self._queue.popleft()
                job.started_s = time.monotonic()
            grammar, fault = self._run(job)
            with self._wake:
                job.grammar, job.fault, job.is_done = grammar, fault, True
                if job.is_given_up:
                    self._num_given_up -= 1
                    if self._num_threads - self._num_given_up > _NUM_THREADS:
                        self._num_threads -= 1
                        return  # another has taken this one's place

    def _run(self, job: _Job) -> tuple[Grammar | None, str | None]:
        try:
            if job.spec is None:
                self.compiler.prepare()
                return None, None
            return self.compiler.compile(job.spec), None
        except InvalidGrammar as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 -- a fault of one grammar ends one request, not the thread
            return None, f"{type(error).__name__}: {error}"[:500]
