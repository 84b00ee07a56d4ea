"""One rank's worker: loads the model, owns the KV cache, runs plans; knows nothing of requests' text."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from llm_distributed import DeviceMesh
from llm_kernels import ops
from llm_models import PoolingModel, load_model, pooling_over, resolve
from llm_models.model import Model
from llm_scheduler import StepPlan
from llm_tokenizer import Tokenizer
from numpy.typing import NDArray

from llm_engine.grammar.background import BackgroundCompiler
from llm_engine.grammar.compiler import GrammarCompiler
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.grammar.xgrammar_backend import import_what_is_shared
from llm_engine.worker.cache_layout import LayoutOptions, caches_in, choose_layout
from llm_engine.worker.config import ModelInfo, WorkerConfig
from llm_engine.worker.determinism import check_deterministic
from llm_engine.worker.devices import pick_device, pick_dtype, pick_graphs
from llm_engine.worker.errors import InvalidOption, WorkerError
from llm_engine.worker.graph_capture import GraphCapture
from llm_engine.worker.kernel_cache import use_kernel_cache
from llm_engine.worker.kv_pool import allocate_pool
from llm_engine.worker.kv_sizing import count_pages, measure_memory
from llm_engine.worker.memory_plan import MemoryPlan
from llm_engine.worker.model_runner import ModelRunner
from llm_engine.worker.pending_step import PendingStep
from llm_engine.worker.pooling_info import PoolingInfo
from llm_engine.worker.pooling_worker import describe, run_texts
from llm_engine.worker.triton_prefetch import start_prefetch

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Loaded:
    model: Model
    info: ModelInfo


class Worker:
    """What an executor runs on a rank.

    Calls in order: `load`, `size_kv_cache`, `allocate_kv`, then `execute` for each plan.

    Args:
        mesh: The rank's view of the mesh.
        config: What to load and how.

    Raises:
        InvalidOption: The mesh has another axis than tensor parallelism, or an option is out of range.
    """

    def __init__(self, mesh: DeviceMesh, config: WorkerConfig) -> None:
        if mesh.world_size != mesh.size("tp"):
            raise InvalidOption("mesh", f"ranks share layers (axis tp) and nothing else, got {mesh.axes}")
        if config.deterministic and mesh.world_size > 1:
            raise InvalidOption("deterministic", f"needs one rank, got {mesh.world_size}")
        self._mesh, self._config = mesh, config
        use_kernel_cache(config.kernel_cache)
        self._device = pick_device(config.device, mesh.global_rank)
        self._graphs = pick_graphs(config.graphs, self._device)
        if config.threads is not None:
            if config.threads < 1:
                raise InvalidOption("threads", f"must be at least 1, got {config.threads}")
            torch.set_num_threads(config.threads)
        self._loaded: _Loaded | None = None
        self._runner: ModelRunner | None = None
        self._pooling: PoolingModel | None = None
        self._memory: MemoryPlan | None = None
        self._grammars = None if config.tokenizer is None else BackgroundCompiler(self._grammar_compiler)

    def load(self) -> ModelInfo:
        """Finds the model and loads its weights.

        Raises:
            InvalidOption: `dtype`, `max_model_len` or `deterministic` does not go with the model.
            ModelError: What `llm_models` raises for missing or broken files, or for a model that cannot be
                shared out among the ranks.
        """
        started = time.perf_counter()
        config = self._config
        if self._device.type == "cuda":
            start_prefetch()
        if self._grammars is not None:
            import_what_is_shared()  # before there is a thread that compiles
        files = resolve(config.model, offline=config.offline, allow_pickle=config.allow_pickle)
        dtype = pick_dtype(config.dtype, self._device, files.config)
        model = load_model(
            files,
            dtype=dtype,
            device=self._device,
            load_format="dummy" if config.load_format == "dummy" else "auto",
            progress=config.progress and self._mesh.global_rank == 0,
            mesh=self._mesh,
            trust_remote_code=config.trust_remote_code,
            quantization=config.quantization,
        )
        model.caches = caches_in(config.kv_cache_dtype, model.caches)
        if not model.capturable:
            self._graphs = None
        limit = model.spec.max_positions
        if config.max_model_len is not None and not 0 < config.max_model_len <= limit:
            raise InvalidOption(
                "max_model_len", f"must be from 1 to the model's {limit}, got {config.max_model_len}"
            )
        layout = choose_layout(
            model.caches,
            LayoutOptions(
                dtype=dtype,
                block_size=config.block_size,
                max_tokens=config.max_model_len or limit,
                prefix_caching=config.prefix_caching,
                state_interval=config.state_interval,
            ),
        )
        if not all(group.follows_tokens for group in layout.groups):
            raise WorkerError("models with an encoder are not served yet")
        if config.deterministic:
            check_deterministic(model, layout)
        info = ModelInfo(
            architecture=str((files.config.get("architectures") or ["unknown"])[0]),
            vocab_size=model.spec.embedding.vocab_size,
            max_model_len=config.max_model_len or limit,
            model_max_len=limit,
            kv_layout=layout,
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            dtype=str(dtype).removeprefix("torch."),
            device=str(self._device),
            load_s=time.perf_counter() - started,
        )
        self._loaded = _Loaded(model, info)
        return info

    def size_kv_cache(self) -> int:
        """Number of KV pages that fit on this rank.

        Raises:
            KVCacheTooSmall: They do not hold one longest request; the message says what to lower.
        """
        loaded, config = self._need_loaded(), self._config
        if self._device.type == "cuda" and config.kv_cache_bytes is None:
            layout = loaded.info.kv_layout
            with ops.batch_invariant() if config.deterministic else nullcontext():
                self._memory = measure_memory(loaded.model, layout, config, graphs=self._graphs is not None)
            _LOG.info("memory: %s", self._memory)
        return count_pages(loaded.info.kv_layout, config, self._memory)

    def memory_plan(self) -> dict[str, int] | None:
        """The fields of the `MemoryPlan` that `size_kv_cache` found; None where it did not look."""
        return None if self._memory is None else msgspec.structs.asdict(self._memory)

    def allocate_kv(self, num_blocks: int, host_blocks: int = 0) -> ModelInfo:
        """Allocates the KV cache and the slot tables; may be called again to change the size.

        Args:
            num_blocks: Blocks of the pool: pages on the device.
            host_blocks: Pages of the host cache, to which plans store and from which they load.

        Returns:
            The model's description, with `max_model_len` lowered to what the cache holds where it was left
            open.

        Raises:
            InvalidOption: No blocks, or fewer than one request of the configured `max_model_len` needs.
        """
        loaded, config = self._need_loaded(), self._config
        layout = loaded.info.kv_layout
        holds = layout.longest(num_blocks) if num_blocks > 0 else 0
        if num_blocks < 1 or holds < (config.max_model_len or 1):
            raise InvalidOption("num_blocks", f"{num_blocks} blocks hold less than max_model_len tokens")
        info = msgspec.structs.replace(
            loaded.info, max_model_len=min(config.max_model_len or loaded.info.model_max_len, holds)
        )
        self._runner = None
        pool = allocate_pool(loaded.model.caches, layout, num_blocks, loaded.model.dtype, self._device)
        self._runner = ModelRunner(
            loaded.model,
            pool,
            layout,
            num_slots=config.max_num_seqs,
            max_model_len=info.max_model_len,
            sampled_vocab_size=config.sampled_vocab_size,
            host_blocks=host_blocks,
            grammars=self._grammars,
            batch_invariant=config.deterministic,
        )
        if self._graphs is not None:
            self._runner.use_graphs(
                GraphCapture(self._device, self._graphs),
                memory_bytes=int(config.graph_memory_gib * 2**30),
                lockstep=self._mesh.world_size > 1,
            )
        self._loaded = _Loaded(loaded.model, info)
        return info

    def execute(self, plan: StepPlan) -> PendingStep:
        """Launches a plan; plans in order, at most two in flight, results taken in order.

        Raises:
            PlanError: The plan does not fit the slots.
        """
        if self._runner is None:
            raise WorkerError("no KV cache yet: call allocate_kv first")
        return self._runner.launch(plan)

    def pooling_info(self) -> PoolingInfo:
        """What the model is like as an embedder: the last token's state, on the same weights.

        Raises:
            UnsupportedConfig: It has blocks that do not run over whole texts.
        """
        loaded = self._need_loaded()
        self._pooling = self._pooling or pooling_over(loaded.model)
        return describe(self._pooling, loaded.info.max_model_len)

    def pool(
        self,
        texts: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int]] | None = None,
        normalize: bool | None = None,
        per_token: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Vectors of whole texts, in one pass beside the KV cache; after `pooling_info`."""
        if self._pooling is None:
            raise WorkerError("no embedder yet: call pooling_info first")
        return run_texts(self._pooling, texts, token_types, normalize, per_token=per_token)

    def reset(self) -> None:
        """Forgets every slot; the KV cache's contents are not cleared."""
        if self._runner is not None:
            self._runner.reset()

    def capture_one(self) -> bool:
        """Captures one graph that was missed; False where none was. No step may be on its way."""
        return self._runner is not None and self._runner.capture_one()

    def step_counts(self) -> dict[str, int]:
        """Steps since the KV cache was allocated: "graph", those that replayed one, and "eager", the rest."""
        runner = self._runner
        if runner is None:
            return {"graph": 0, "eager": 0}
        return {"graph": runner.num_graph_steps, "eager": runner.num_eager_steps}

    def prepare_grammars(self) -> None:
        """Begins, in a thread, with what the first grammar needs."""
        if self._grammars is not None:
            self._grammars.prepare()

    def compile_grammars(
        self, wanted: Sequence[tuple[str, GrammarSpec | dict[str, str]]], ended: Sequence[str]
    ) -> list[tuple[str, str | None]]:
        """Begins to compile in threads, and tells what has finished; never waits.

        Args:
            wanted: Ids of requests that will be admitted, each with its grammar.
            ended: Ids of requests that will not be admitted again.

        Returns:
            The ids whose grammar is there (None), or failed (why), each once.
        """
        if self._grammars is None:
            return [(request_id, "grammars need a tokenizer") for request_id, _ in wanted]
        for request_id in ended:
            self._grammars.release(request_id)
        for request_id, spec in wanted:
            self._grammars.begin(request_id, msgspec.convert(spec, GrammarSpec))
        return self._grammars.finished()

    def close(self) -> None:
        """Ends the worker's threads."""
        if self._runner is not None:
            self._runner.close()
        if self._grammars is not None:
            self._grammars.close()

    def _grammar_compiler(self) -> GrammarCompiler:
        assert self._config.tokenizer is not None
        return GrammarCompiler(
            Tokenizer.from_file(self._config.tokenizer),
            self._config.eos_token_ids,
            self._config.grammar_backend,
        )

    def _need_loaded(self) -> _Loaded:
        if self._loaded is None:
            raise WorkerError("no model yet: call load first")
        return self._loaded


def create_worker(mesh: DeviceMesh, *, config: WorkerConfig | dict[str, object]) -> Worker:
    """The factory for executors; `config` may be plain data that crossed a process border."""
    if isinstance(config, dict):
        config = msgspec.convert(config, WorkerConfig)
    return Worker(mesh, config)
