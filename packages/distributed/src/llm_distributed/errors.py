"""The errors of meshes, executors and codecs; knows nothing of models or requests."""

from __future__ import annotations


class DistributedError(Exception):
    """Base of all errors of this package."""


class MeshError(DistributedError):
    """A mesh, an axis or a rank that does not exist.

    Attributes:
        field: The argument at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class CodecError(DistributedError):
    """A message cannot be encoded or decoded."""


class ExecutorError(DistributedError):
    """Base of what goes wrong between an executor and its workers."""


class NotRunning(ExecutorError):
    """The executor was not started, or was shut down."""


class StartFailed(ExecutorError):
    """A worker could not be built.

    Attributes:
        rank: The rank.
        reason: The last line of the worker's traceback, or how its process ended.
        details: The whole traceback where there is one.
    """

    def __init__(self, rank: int, reason: str, details: str = "") -> None:
        super().__init__(f"worker of rank {rank} did not start: {reason}")
        self.rank = rank
        self.reason = reason
        self.details = details


class WorkerDied(ExecutorError):
    """A worker's process has ended or no longer answers; the executor has stopped all others.

    Attributes:
        rank: The rank that died first.
        reason: How.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"worker of rank {rank} died: {reason}")
        self.rank = rank
        self.reason = reason


class StepFailed(ExecutorError):
    """A step raised on a worker; the executor lives on and takes the next plan.

    Attributes:
        rank: The rank that raised first.
        reason: The last line of its traceback.
        details: The whole traceback.
    """

    def __init__(self, rank: int, reason: str, details: str = "") -> None:
        super().__init__(f"step failed on rank {rank}: {reason}")
        self.rank = rank
        self.reason = reason
        self.details = details


class CallFailed(ExecutorError):
    """A method called by name raised on a worker; the executor lives on.

    Attributes:
        method: The method's name.
        rank: The rank that raised first.
        error_type: The name of the exception's class, such as "KVCacheTooSmall".
        message: The exception's text.
        details: The whole traceback.
    """

    def __init__(self, method: str, rank: int, error_type: str, message: str, details: str = "") -> None:
        super().__init__(f"{method} failed on rank {rank}: {error_type}: {message}")
        self.method = method
        self.rank = rank
        self.error_type = error_type
        self.message = message
        self.details = details
