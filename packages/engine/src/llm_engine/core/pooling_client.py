"""Owns the offline front end's hold on a model that gives vectors or scores; no scheduler, no cache."""

from typing import Any

import msgspec
from llm_distributed import CallFailed
from llm_models import ModelFiles

from llm_engine.core.messages import CoreInfo
from llm_engine.core.startup import as_startup_errors, find_tokenizer, make_executor, worker_config
from llm_engine.errors import EngineDead, RequestFailed
from llm_engine.options import EngineOptions
from llm_engine.worker.pooling_info import PoolingInfo
from llm_engine.worker.pooling_worker import create_pooling_worker


class PoolingClient:
    """A worker with a model that gives vectors or scores.

    Args:
        options: What to run; what concerns steps and caches is not read.
        files: The model's.

    Attributes:
        tokenizer: The model's; None: it has none.

    Raises:
        StartupError: The model could not be loaded; one line says why.
    """

    def __init__(self, options: EngineOptions, files: ModelFiles) -> None:
        with as_startup_errors():
            self.tokenizer, tokenizer_path = find_tokenizer(options, files)
            self._executor = make_executor(
                worker_config(options, options.max_num_batched_tokens or 1, None),
                options.tensor_parallel_size,
                create_pooling_worker,
            )
            self._executor.start()
            try:
                self.pooling_info = msgspec.convert(
                    self._executor.call("load")[0], PoolingInfo, from_attributes=True
                )
            except BaseException:
                self._executor.shutdown()
                raise
        self._running = True
        info = self.pooling_info
        self.info = CoreInfo(
            tokenizer_path=tokenizer_path,
            max_model_len=info.max_tokens,
            vocab_size=info.vocab_size,
            eos_token_ids=[],
            num_blocks=0,
            block_size=options.block_size,
            device=info.device,
            dtype=info.dtype,
            overlap=False,
            prefix_caching=False,
        )

    def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 - any method of the worker
        """Call a method of the worker on every rank and return the first's result.

        Raises:
            RequestFailed: It raised.
            EngineDead: The worker was shut down.
        """
        if not self._running:
            raise EngineDead("the engine was shut down")
        try:
            return self._executor.call(method, *args)[0]
        except CallFailed as error:
            raise RequestFailed(f"{error.error_type}: {error.message}") from error

    def shutdown(self) -> None:
        """End the worker and free its memory. Safe to call twice."""
        if self._running:
            self._running = False
            self._executor.shutdown()
