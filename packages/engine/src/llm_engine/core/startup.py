"""Owns the way from options to a running core (files, worker, cache, scheduler); no processes here."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch
from llm_distributed import CallFailed, Executor, InProcessExecutor, MultiprocessExecutor
from llm_kvcache import KVCache
from llm_models import ModelFiles, resolve
from llm_scheduler import Scheduler, SchedulerConfig, load_scheduler
from llm_scheduler.recording import RecordingScheduler
from llm_tokenizer import Tokenizer, TokenizerFileError

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import CoreInfo
from llm_engine.core.prefix_pins import PrefixPins
from llm_engine.core.warm_up import warm_up
from llm_engine.errors import EngineError, StartupError
from llm_engine.generation_defaults import sampling_defaults
from llm_engine.options import EngineOptions
from llm_engine.start_profile import StartRecorder, build_profile
from llm_engine.worker import ModelInfo, WorkerConfig, create_worker
from llm_engine.worker.finding import find_worker

_LOG = logging.getLogger(__name__)

OnFound: TypeAlias = Callable[[Tokenizer | None, str | None], None]

_CPU_BATCHED_TOKENS = 1024
CUDA_BATCHED_TOKENS = 8192


def start_core(
    options: EngineOptions,
    on_found: OnFound | None = None,
    recorder: StartRecorder | None = None,
) -> EngineCore:
    """Build everything a core needs and load the model.

    On CUDA, and wherever `profile_start` asks, a short request runs before the core is ready: it loads the
    kernels of a step and captures the first graph. Other graphs are captured when they are first needed.

    Args:
        options: What to run.
        on_found: Called with the tokenizer and its path (None: the model has none) before the weights are
            read.
        recorder: Gets the spans of the start, which the core's `info` has too; None: a new one.

    Raises:
        StartupError: Whatever went wrong, as one line; the cause is chained.
    """
    with as_startup_errors():
        return _start(options, on_found, recorder or StartRecorder())


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


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of the model before its weights are read."""

    files: ModelFiles
    tokenizer: Tokenizer | None
    tokenizer_path: str | None
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class _Workers:
    """Started workers with their model and KV cache: its blocks on each rank's device and in host memory."""

    executor: Executor
    model: ModelInfo
    num_blocks: int
    host_blocks: int


def _start(options: EngineOptions, on_found: OnFound | None, recorder: StartRecorder) -> EngineCore:
    found = _find(options, recorder)
    if on_found is not None:
        on_found(found.tokenizer, found.tokenizer_path)
    workers = _start_workers(options, found, recorder)
    try:
        return _build_core(options, found, workers, recorder)
    except BaseException:
        workers.executor.shutdown()
        raise


def _find(options: EngineOptions, recorder: StartRecorder) -> _Found:
    with recorder.span("config"):
        files = resolve(options.model, offline=options.offline, allow_pickle=options.allow_pickle)
        budget = options.max_num_batched_tokens or default_budget(options)
    with recorder.span("tokenizer"):
        tokenizer, path = find_tokenizer(options, files)
    return _Found(files, tokenizer, path, budget)


def _build_core(
    options: EngineOptions, found: _Found, workers: _Workers, recorder: StartRecorder
) -> EngineCore:
    config = _scheduler_config(options, workers.model, found.budget_tokens)
    info = _describe(options, found, workers)
    if options.profile_start or info.device.startswith("cuda"):
        plain = replace(config, policy="fcfs")
        warm_up(workers.executor, _make_cache(options, workers), plain, info, recorder)
    with recorder.span("scheduler and cache manager"):
        cache = _make_cache(options, workers)
        scheduler = _make_scheduler(options, config, cache)
    info = msgspec.structs.replace(info, start_spans=recorder.spans)
    _LOG.info("core ready in %.1f s: %s", build_profile(recorder.spans).wall_s, info)
    pins = PrefixPins(
        cache, options.pinned_cache_share, options.pinned_cache_share_per_tenant, time.monotonic()
    )
    return EngineCore(scheduler, cache, workers.executor, info, pins)


def _make_cache(options: EngineOptions, workers: _Workers) -> KVCache:
    return KVCache(
        [group.for_cache() for group in workers.model.kv_layout.groups],
        workers.num_blocks,
        enable_prefix_caching=options.enable_prefix_caching,
        host_blocks=workers.host_blocks,
        policy=options.eviction_policy,
    )


def _describe(options: EngineOptions, found: _Found, workers: _Workers) -> CoreInfo:
    model = workers.model
    return CoreInfo(
        tokenizer_path=found.tokenizer_path,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=_eos_token_ids(found.files, found.tokenizer),
        num_blocks=workers.num_blocks,
        block_size=model.kv_layout.alignment,
        device=model.device,
        dtype=model.dtype,
        overlap=_overlap(options, model),
        prefix_caching=options.enable_prefix_caching,
        sampling_defaults=sampling_defaults(found.files.generation_config),
    )


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


def _start_workers(options: EngineOptions, found: _Found, recorder: StartRecorder) -> _Workers:
    """Workers that have their model and their KV cache."""
    config = worker_config(options, found.budget_tokens, found.tokenizer)
    if found.tokenizer is not None:
        eos = tuple(_eos_token_ids(found.files, found.tokenizer))
        config = msgspec.structs.replace(config, tokenizer=found.tokenizer_path, eos_token_ids=eos)
    executor = make_executor(config, options.tensor_parallel_size, find_worker(options.worker))
    with recorder.span("workers and devices"):
        executor.start()
    try:
        with recorder.span("weights"):
            loaded: ModelInfo = executor.call("load")[0]
        with recorder.span("sizing, with a step of the largest size"):
            # Every rank gets the same number of blocks, so that one plan fits all.
            num_blocks = min(executor.call("size_kv_cache"))
        host_blocks = int(options.host_cache_gib * 2**30) // loaded.kv_layout.page_bytes
        with recorder.span("KV cache"):
            model: ModelInfo = executor.call("allocate_kv", num_blocks, host_blocks)[0]
    except BaseException:
        executor.shutdown()
        raise
    return _Workers(executor, model, num_blocks, host_blocks)


def worker_config(options: EngineOptions, budget: int, tokenizer: Tokenizer | None) -> WorkerConfig:
    """What the workers are told of the options."""
    return WorkerConfig(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        load_format=options.load_format,
        quantization=None if options.quantization is None else "fp8",
        grammar_backend=options.grammar_backend,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        gpu_memory_fraction=options.gpu_memory_fraction,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_cache_bytes=options.kv_cache_bytes,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        prefix_caching=options.enable_prefix_caching,
        state_interval=options.state_interval,
        sampled_vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        deterministic=options.deterministic,
        graphs=options.graphs,
        graph_memory_gib=options.graph_memory_gib,
        offline=options.offline,
        allow_pickle=options.allow_pickle,
        trust_remote_code=options.trust_remote_code,
        threads=options.threads,
        kernel_cache=options.kernel_cache,
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


def _scheduler_config(options: EngineOptions, model: ModelInfo, budget: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_model_len=model.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        policy=options.policy,
        long_prefill_share=options.long_prefill_share,
        long_prompt_tokens=options.long_prompt_tokens,
        max_waiting_requests=options.max_waiting_requests,
        max_waiting_tokens=options.max_waiting_tokens,
    )


def _make_scheduler(options: EngineOptions, config: SchedulerConfig, cache: KVCache) -> Scheduler:
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


def default_budget(options: EngineOptions) -> int:
    """Tokens of a step where the options leave it open."""
    on_cuda = options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())
    return CUDA_BATCHED_TOKENS if on_cuda else _CPU_BATCHED_TOKENS


def _overlap(options: EngineOptions, model: ModelInfo) -> bool:
    return model.device.startswith("cuda") if options.overlap is None else options.overlap
