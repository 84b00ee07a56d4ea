"""The executor of one rank in the caller's own process; knows nothing of sockets or codecs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from llm_distributed.errors import CallFailed, NotRunning, StartFailed, StepFailed
from llm_distributed.executor import FailedResult, PendingResult
from llm_distributed.mesh import DeviceMesh
from llm_distributed.tracebacks import last_line


class InProcessExecutor:
    """Runs one worker here. Errors look as they do from a worker process, with the original as their cause.

    Args:
        factory: Called as `factory(mesh, **kwargs)` by `start`.
        kwargs: Arguments of the factory.
    """

    def __init__(self, factory: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> None:
        self._factory = factory
        self._kwargs = dict(kwargs or {})
        self._worker: Any = None

    @property
    def mesh_size(self) -> int:
        """1."""
        return 1

    def start(self) -> None:
        """Builds the worker; raises `StartFailed`."""
        try:
            self._worker = self._factory(DeviceMesh(), **self._kwargs)
        except Exception as error:
            raise StartFailed(0, last_line(error), traceback.format_exc()) from error

    def call(self, method: str, *args: Any) -> list[Any]:  # noqa: ANN401  (any method of any worker)
        """Calls a method of the worker; raises `CallFailed`."""
        worker = self._running()
        try:
            return [getattr(worker, method)(*args)]
        except Exception as error:
            raise CallFailed(method, 0, type(error).__name__, str(error), traceback.format_exc()) from error

    def submit(self, plan: Any) -> PendingResult[Any]:  # noqa: ANN401
        """Starts a plan. What it raises, now or later, comes out of `result` as `StepFailed`."""
        worker = self._running()
        try:
            return _Guarded(worker.execute(plan))
        except Exception as error:  # noqa: BLE001  (reported through the result, as a process would)
            return FailedResult(_step_failed(error))

    def check(self) -> None:
        """Raises `NotRunning` before `start` and after `shutdown`."""
        self._running()

    def shutdown(self) -> None:
        """Drops the worker, calling its `close` where it has one."""
        worker, self._worker = self._worker, None
        close = getattr(worker, "close", None)
        if close is not None:
            close()

    def _running(self) -> Any:  # noqa: ANN401
        if self._worker is None:
            raise NotRunning("the executor is not running: call start() first")
        return self._worker


class _Guarded:
    """A worker's pending result whose errors become `StepFailed`."""

    __slots__ = ("_pending",)

    def __init__(self, pending: PendingResult[Any]) -> None:
        self._pending = pending

    def done(self) -> bool:
        try:
            return self._pending.done()
        except Exception:  # noqa: BLE001 - a broken device; `result` tells of it
            return True

    def result(self) -> Any:  # noqa: ANN401
        try:
            return self._pending.result()
        except Exception as error:
            raise _step_failed(error) from error


def _step_failed(error: Exception) -> StepFailed:
    failed = StepFailed(0, last_line(error), "".join(traceback.format_exception(error)))
    failed.__cause__ = error
    return failed
