"""Device mesh, collectives and executors for LLM inference; knows nothing of models or requests."""

from llm_distributed.codec import MsgpackCodec
from llm_distributed.errors import (
    CallFailed,
    CodecError,
    DistributedError,
    ExecutorError,
    MeshError,
    NotRunning,
    StartFailed,
    StepFailed,
    WorkerDied,
)
from llm_distributed.executor import (
    API_VERSION,
    Codec,
    Executor,
    FailedResult,
    PendingResult,
    ReadyResult,
    Worker,
)
from llm_distributed.in_process import InProcessExecutor
from llm_distributed.mesh import AXES, DeviceMesh, connect
from llm_distributed.multiprocess import MultiprocessExecutor

__all__ = [
    "API_VERSION",
    "AXES",
    "CallFailed",
    "Codec",
    "CodecError",
    "DeviceMesh",
    "DistributedError",
    "Executor",
    "ExecutorError",
    "FailedResult",
    "InProcessExecutor",
    "MeshError",
    "MsgpackCodec",
    "MultiprocessExecutor",
    "NotRunning",
    "PendingResult",
    "ReadyResult",
    "StartFailed",
    "StepFailed",
    "Worker",
    "WorkerDied",
    "connect",
]
