"""The worker: model, KV cache and sampling of one rank; knows nothing of requests' text, queues or HTTP.

Calls, in order: `create_worker(mesh, config=...)`, `load()`, `size_kv_cache()`, `allocate_kv(num_blocks)`,
then `execute(plan)` for each plan. With a multiprocess executor the factory is
"llm_engine.worker:create_worker" and the codec "llm_engine.worker.codec:EngineCodec".
"""

from typing import TYPE_CHECKING

from llm_engine.worker.config import ModelInfo, WorkerConfig
from llm_engine.worker.errors import InvalidOption, KVCacheTooSmall, PlanError, WorkerError
from llm_engine.worker.row_params import RowParams

if TYPE_CHECKING:
    from llm_engine.worker.logprobs import PromptLogprobs
    from llm_engine.worker.worker import Worker, create_worker

__all__ = [
    "InvalidOption",
    "KVCacheTooSmall",
    "ModelInfo",
    "PlanError",
    "PromptLogprobs",
    "RowParams",
    "Worker",
    "WorkerConfig",
    "WorkerError",
    "create_worker",
]

_LAZY = {
    "PromptLogprobs": "llm_engine.worker.logprobs",
    "Worker": "llm_engine.worker.worker",
    "create_worker": "llm_engine.worker.worker",
}


def __getattr__(name: str) -> object:
    # Loaded on first use: the front end's process needs only the messages, and torch takes seconds.
    if name in _LAZY:
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
