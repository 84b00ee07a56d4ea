"""One rank's worker for vectors and scores of whole texts: no KV cache, no slots; knows nothing of text."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from llm_distributed import DeviceMesh
from llm_models import PoolingModel, load_pooling_model, resolve
from numpy.typing import NDArray

from llm_engine.worker.config import WorkerConfig
from llm_engine.worker.devices import pick_device, pick_dtype
from llm_engine.worker.errors import InvalidOption, WorkerError
from llm_engine.worker.kernel_cache import use_kernel_cache
from llm_engine.worker.pooling_info import PoolingInfo


class PoolingWorker:
    """What an executor runs on a rank for a model that is no language model: `load`, then `pool`.

    Args:
        mesh: The rank's view of the mesh.
        config: What to load and how; what concerns steps and caches is not read.

    Raises:
        InvalidOption: The mesh has another axis than tensor parallelism, or an option is out of range.
    """

    def __init__(self, mesh: DeviceMesh, config: WorkerConfig) -> None:
        if mesh.world_size != mesh.size("tp"):
            raise InvalidOption("mesh", f"ranks share layers (axis tp) and nothing else, got {mesh.axes}")
        self._mesh, self._config = mesh, config
        use_kernel_cache(config.kernel_cache)
        self._device = pick_device(config.device, mesh.global_rank)
        if config.threads is not None:
            if config.threads < 1:
                raise InvalidOption("threads", f"must be at least 1, got {config.threads}")
            torch.set_num_threads(config.threads)
        self._model: PoolingModel | None = None

    def load(self) -> PoolingInfo:
        """Finds the model and loads its weights.

        Raises:
            InvalidOption: `dtype` or `max_model_len` does not go with the model.
            ModelError: What `llm_models` raises for missing or broken files.
        """
        started, config = time.perf_counter(), self._config
        files = resolve(config.model, offline=config.offline, allow_pickle=config.allow_pickle)
        model = load_pooling_model(
            files,
            dtype=pick_dtype(config.dtype, self._device, files.config),
            device=self._device,
            load_format="dummy" if config.load_format == "dummy" else "auto",
            progress=config.progress and self._mesh.global_rank == 0,
            mesh=self._mesh,
            quantization=self._config.quantization,
        )
        limit = model.spec.body.max_positions
        if config.max_model_len is not None and not 0 < config.max_model_len <= limit:
            raise InvalidOption(
                "max_model_len", f"must be from 1 to the model's {limit}, got {config.max_model_len}"
            )
        self._model = model
        info = describe(model, config.max_model_len or model.spec.longest)
        return msgspec.structs.replace(info, load_s=time.perf_counter() - started)

    def pool(
        self,
        texts: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int]] | None = None,
        normalize: bool | None = None,
        per_token: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Runs whole texts in one pass; see `PoolingModel.run`."""
        if self._model is None:
            raise WorkerError("no model yet: call load first")
        return run_texts(self._model, texts, token_types, normalize, per_token=per_token)


def describe(model: PoolingModel, max_tokens: int) -> PoolingInfo:
    """What a loaded model is like."""
    spec, body = model.spec, model.body
    return PoolingInfo(
        architecture=spec.body.architecture,
        vocab_size=spec.body.embedding.vocab_size,
        max_tokens=max_tokens,
        size=spec.size,
        labels=spec.labels,
        per_token=spec.pooling == "token",
        normalize=spec.normalize,
        num_token_types=spec.body.embedding.token_types,
        num_parameters=sum(parameter.numel() for parameter in body.parameters()),
        dtype=str(body.dtype).removeprefix("torch."),
        device=str(model.device),
    )


def run_texts(
    model: PoolingModel,
    texts: Sequence[Sequence[int]],
    token_types: Sequence[Sequence[int]] | None,
    normalize: bool | None,
    *,
    per_token: bool = False,
) -> list[NDArray[np.float32]]:
    """One pass, its results as arrays."""
    return [
        result.numpy() for result in model.run(texts, token_types, normalize=normalize, per_token=per_token)
    ]


def create_pooling_worker(mesh: DeviceMesh, *, config: WorkerConfig | dict[str, object]) -> PoolingWorker:
    """The factory for executors; `config` may be plain data that crossed a process border."""
    if isinstance(config, dict):
        config = msgspec.convert(config, WorkerConfig)
    return PoolingWorker(mesh, config)
