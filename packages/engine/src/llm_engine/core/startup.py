"""Owns the way from options to a running core (files, worker, cache, scheduler); no processes here."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llm_distributed import CallFailed, Executor, InProcessExecutor, MultiprocessExecutor
from llm_kvcache import KVCache
from llm_models import ModelFiles, resolve
from llm_scheduler import Scheduler, SchedulerConfig, load_scheduler
from llm_scheduler.recording import RecordingScheduler
from llm_tokenizer import Tokenizer, TokenizerFileError

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import CoreInfo
from llm_engine.errors import EngineError, StartupError
from llm_engine.generation_defaults import sampling_defaults
from llm_engine.options import EngineOptions
from llm_engine.worker import ModelInfo, WorkerConfig, create_worker

_LOG = logging.getLogger(__name__)
_CPU_BATCHED_TOKENS = 1024
_CUDA_BATCHED_TOKENS = 8192


def start_core(options: EngineOptions, on_found: Callable[[str | None], None] | None = None) -> EngineCore:
    """Build everything a core needs and load the model.

    Args:
        options: What to run.
        on_found: Called with the tokenizer's path (None: the model has none) before the weights are read.

    Raises:
        StartupError: Whatever went wrong, as one line; the cause is chained.
    """
    with as_startup_errors():
        return _start(options, on_found)


@contextmanager
def as_startup_errors() -> Iterator[None]:
    """Turns whatever goes wrong inside into a `StartupError` of one line."""
    try:
        yield
    except CallFailed as error:
        raise StartupError(error.error_type, " ".join(error.message.split())) from error
    except EngineError:
        raise
    except Exception as error:
        raise StartupError(type(error).__name__, one_line(error)) from error


def one_line(error: BaseException) -> str:
    """An exception's message as one line."""
    return " ".join((str(error) or type(error).__name__).split())


def _start(options: EngineOptions, on_found: Callable[[str | None], None] | None) -> EngineCore:
    started_s = time.monotonic()
    files = resolve(options.model, offline=options.offline, allow_pickle=options.allow_pickle)
    tokenizer, shown_path = find_tokenizer(options, files)
    if on_found is not None:
        on_found(shown_path)
    budget = options.max_num_batched_tokens or _default_budget(options)
    executor, model, sizes = _start_worker(options, budget, tokenizer)
    cache = KVCache(
        [group.for_cache() for group in model.kv_layout.groups],
        sizes.num_blocks,
        enable_prefix_caching=options.enable_prefix_caching,
        host_blocks=sizes.host_blocks,
        policy=options.eviction_policy,
    )
    scheduler = _make_scheduler(options, model, budget, cache)
    info = CoreInfo(
        tokenizer_path=shown_path,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=_eos_token_ids(files, tokenizer),
        num_blocks=sizes.num_blocks,
        block_size=model.kv_layout.alignment,
        device=model.device,
        dtype=model.dtype,
        overlap=_overlap(options, model),
        prefix_caching=options.enable_prefix_caching,
        sampling_defaults=sampling_defaults(files.generation_config),
    )
    _LOG.info("core ready in %.1f s: %s", time.monotonic() - started_s, info)
    return EngineCore(scheduler, cache, executor, info)


def find_tokenizer(options: EngineOptions, files: ModelFiles) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer and its path; None for a model that may do without one and does."""
    path = Path(options.tokenizer) if options.tokenizer else files.tokenizer_path
    tokenizer = _load_tokenizer(path, optional=options.load_format == "dummy" and not options.tokenizer)
    return tokenizer, None if tokenizer is None else str(path)


def _load_tokenizer(path: Path, *, optional: bool) -> Tokenizer | None:
    """The tokenizer, for the ids it knows; benchmarks with dummy weights may do without one."""
    try:
        return Tokenizer.from_file(path)
    except TokenizerFileError:
        if optional:
            return None
        raise


@dataclass(frozen=True, slots=True)
class KVSizes:
    """Blocks of the KV cache on each rank's device and in its host memory."""

    num_blocks: int
    host_blocks: int


def _start_worker(
    options: EngineOptions, budget: int, tokenizer: Tokenizer | None
) -> tuple[Executor, ModelInfo, KVSizes]:
    """A started executor whose worker has its model and its KV cache."""
    config = worker_config(options, budget, tokenizer)
    executor = make_executor(config, options.tensor_parallel_size)
    executor.start()
    try:
        loaded: ModelInfo = executor.call("load")[0]
        # Every rank gets the same number of blocks, so that one plan fits all.
        num_blocks = min(executor.call("size_kv_cache"))
        sizes = KVSizes(num_blocks, int(options.host_cache_gib * 2**30) // loaded.kv_layout.page_bytes)
        model: ModelInfo = executor.call("allocate_kv", sizes.num_blocks, sizes.host_blocks)[0]
    except BaseException:
        executor.shutdown()
        raise
    return executor, model, sizes


def worker_config(options: EngineOptions, budget: int, tokenizer: Tokenizer | None) -> WorkerConfig:
    """What the workers are told of the options."""
    return WorkerConfig(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        load_format=options.load_format,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        gpu_memory_fraction=options.gpu_memory_fraction,
        kv_cache_bytes=options.kv_cache_bytes,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        prefix_caching=options.enable_prefix_caching,
        state_interval=options.state_interval,
        sampled_vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        graphs=options.graphs,
        offline=options.offline,
        allow_pickle=options.allow_pickle,
        trust_remote_code=options.trust_remote_code,
        threads=options.threads,
        progress=options.progress,
    )


def make_executor(
    config: WorkerConfig, num_ranks: int, factory: Callable[..., object] = create_worker
) -> Executor:
    """One rank runs in this process; several in one each, with collectives between their devices."""
    if num_ranks == 1:
        return InProcessExecutor(factory, {"config": config})
    on_cuda = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    return MultiprocessExecutor(
        f"{factory.__module__}:{factory.__name__}",
        {"config": config},
        num_ranks,
        "llm_engine.worker.codec:EngineCodec",
        backend="nccl" if on_cuda else "gloo",
    )


def _make_scheduler(options: EngineOptions, model: ModelInfo, budget: int, cache: KVCache) -> Scheduler:
    config = SchedulerConfig(
        max_model_len=model.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        policy=options.policy,
        long_prefill_share=options.long_prefill_share,
        max_waiting_requests=options.max_waiting_requests,
        max_waiting_tokens=options.max_waiting_tokens,
    )
    if options.record_plans is None:
        return load_scheduler(options.scheduler, config, cache)
    cache_options = {
        "enable_prefix_caching": options.enable_prefix_caching,
        "host_blocks": cache.stats().host_blocks,
        "policy": options.eviction_policy,
    }
    return RecordingScheduler(
        options.record_plans, options.scheduler, config, cache, cache_options=cache_options
    )


def _eos_token_ids(files: ModelFiles, tokenizer: Tokenizer | None) -> list[int]:
    """The ids that end a sequence: the generation config's, else the model config's, and the tokenizer's."""
    named: Any = files.generation_config.get("eos_token_id", files.config.get("eos_token_id"))
    eos = {named} if isinstance(named, int) else set(named or ())
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        eos.add(tokenizer.eos_token_id)
    return sorted(eos)


def _default_budget(options: EngineOptions) -> int:
    on_cuda = options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())
    return _CUDA_BATCHED_TOKENS if on_cuda else _CPU_BATCHED_TOKENS


def _overlap(options: EngineOptions, model: ModelInfo) -> bool:
    return model.device.startswith("cuda") if options.overlap is None else options.overlap
