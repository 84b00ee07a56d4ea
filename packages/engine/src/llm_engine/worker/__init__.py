"""The worker: model, KV cache and sampling of one rank; knows nothing of requests' text, queues or HTTP.

Calls, in order: `create_worker(mesh, config=...)`, `load()`, `size_kv_cache()`, `allocate_kv(num_blocks)`,
then `execute(plan)` for each plan. With a multiprocess executor the factory is
"llm_engine.worker:create_worker" and the codec "llm_engine.worker.codec:EngineCodec".
"""

from llm_engine.worker.config import ModelInfo, WorkerConfig
from llm_engine.worker.errors import InvalidOption, KVCacheTooSmall, PlanError, WorkerError
from llm_engine.worker.logprobs import PromptLogprobs
from llm_engine.worker.row_params import RowParams
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
