"""Owns predicting what a model takes on a GPU and how fast it can decode there; needs no GPU.

Weights, KV layout and tables follow from the model's config by the same code that the engine runs. The
activations of the largest step are estimated from the shapes of the matrices, and what the driver and the
libraries take is a constant.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import prod

import torch
from llm_models import DecoderSpec, ModelFiles, is_native, is_pooling, resolve, spec_for
from llm_models.blocks.moe import MoE
from llm_models.config import architecture_name
from llm_models.decoder import decoder_caches, decoder_parameters
from llm_models.loading.scaled import imagined_parameters
from llm_models.parameters import Parameter, Shard
from llm_models.quantization import read_scheme

from llm_engine.core.startup import CUDA_BATCHED_TOKENS, as_startup_errors
from llm_engine.errors import InvalidOption, StartupError
from llm_engine.gpus import Gpu
from llm_engine.options import EngineOptions
from llm_engine.worker.cache_layout import LayoutOptions, caches_in, choose_layout
from llm_engine.worker.config import WorkerConfig
from llm_engine.worker.devices import pick_dtype
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_sizing import count_pages
from llm_engine.worker.memory_plan import MemoryPlan, penalty_bytes, tables_bytes

# The driver's context, the kernels and workspaces of the libraries; see docs/memory.md.
CONTEXT_BYTES = 750 * 2**20
# A draw with penalties, a nucleus and logprobs holds so many bytes for each score, as measured on an H200.
_DRAW_BYTES = 31
_CONTEXTS = (1024, 4096, 8192, 32_768, 131_072)
_ROWS = (1, 16, 64, 256)
_FLOOR_CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFloor:
    """The least time of a decode step: bytes over the rate of reading, or operations over theirs.

    Attributes:
        rows: Sequences that decode.
        context: Tokens of each.
        step_ms: Least milliseconds of a step.
        tokens_per_s: Most tokens a second, over all rows.
    """

    rows: int
    context: int
    step_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What an engine will find on a GPU.

    Attributes:
        architecture: The model's.
        dtype: Number format of the weights.
        num_parameters: On one rank.
        memory: Of one rank's device.
        page_bytes: Bytes of a KV block on one rank.
        num_blocks: KV blocks.
        kv_bytes_per_token: Bytes that a token of a long sequence takes in the cache, on one rank.
        max_model_len: Longest sequence, in tokens.
        concurrency: For contexts of so many tokens, how many sequences the cache holds at a time.
        floors: Of decode steps, for batches that fit.
    """

    architecture: str
    dtype: str
    num_parameters: int
    memory: MemoryPlan
    page_bytes: int
    num_blocks: int
    kv_bytes_per_token: int
    max_model_len: int
    concurrency: Mapping[int, int]
    floors: tuple[DecodeFloor, ...]


def predict_capacity(options: EngineOptions, gpu: Gpu) -> CapacityPlan:
    """Predicts what `options` lead to on GPUs of a kind.

    Raises:
        InvalidOption: `max_model_len` or `tensor_parallel_size` does not go with the model.
        StartupError: The engine would not start either; or the model is not one that can be predicted.
    """
    with as_startup_errors():
        files = resolve(options.model, offline=options.offline, allow_pickle=options.allow_pickle)
        return _predict(options, gpu, files, _spec_of(files))


def _spec_of(files: ModelFiles) -> DecoderSpec:
    name = architecture_name(files.config)
    if is_pooling(files):
        raise StartupError("UnsupportedModel", f"{name} gives vectors or scores and has no KV cache to plan")
    if not is_native(name):
        reason = f"{name} is none of our own; what runs through transformers cannot be predicted"
        raise StartupError("UnsupportedModel", reason)
    return spec_for(files.config)


def _predict(options: EngineOptions, gpu: Gpu, files: ModelFiles, spec: DecoderSpec) -> CapacityPlan:
    limit = spec.max_positions
    if options.max_model_len is not None and options.max_model_len > limit:
        raise InvalidOption("max_model_len", f"must be from 1 to the model's {limit}")
    shard = Shard(0, options.tensor_parallel_size)
    parameters: Sequence[Parameter] = decoder_parameters(spec, shard)
    scheme = read_scheme(files.config, options.quantization)  # type: ignore[arg-type]  # checked by the options
    if scheme is not None:
        parameters = imagined_parameters(parameters, spec.names, scheme)
    dtype = pick_dtype(options.dtype, torch.device("cuda"), files.config)
    longest = options.max_model_len or limit
    caches = caches_in(options.kv_cache_dtype, decoder_caches(spec, shard))
    layout = choose_layout(
        caches,
        LayoutOptions(
            dtype=dtype,
            block_size=options.block_size,
            max_tokens=longest,
            prefix_caching=options.enable_prefix_caching,
            state_interval=options.state_interval,
        ),
    )
    memory = _memory(options, gpu, spec, parameters, layout, dtype, longest)
    _check_fits(memory)
    num_blocks = count_pages(layout, _limits(options), memory)
    max_model_len = min(longest, layout.longest(num_blocks))
    tokens = layout.alignment * max(1, max_model_len // layout.alignment)
    per_token = layout.pages(tokens) * layout.page_bytes // tokens
    reading = _Reading(spec, parameters, dtype)
    return CapacityPlan(
        architecture=spec.architecture,
        dtype=str(dtype).removeprefix("torch."),
        num_parameters=sum(prod(parameter.shape) for parameter in parameters),
        memory=memory,
        page_bytes=layout.page_bytes,
        num_blocks=num_blocks,
        kv_bytes_per_token=per_token,
        max_model_len=max_model_len,
        concurrency={
            context: num_blocks // layout.pages(context)
            for context in sorted({max_model_len, *_CONTEXTS})
            if context <= max_model_len
        },
        floors=tuple(_floors(options, gpu, layout, num_blocks, max_model_len, reading)),
    )


def _check_fits(memory: MemoryPlan) -> None:
    if memory.kv_bytes <= 0:
        weights, others, limit = (
            round(num_bytes / 2**30, 1)
            for num_bytes in (
                memory.weights_bytes,
                memory.used_bytes - memory.weights_bytes,
                memory.limit_bytes,
            )
        )
        reason = f"weights take {weights} GiB and all but the cache {others} GiB more, of {limit} GiB"
        raise StartupError("ModelTooLarge", f"{reason}: raise tensor_parallel_size, or quantize")


def _limits(options: EngineOptions) -> WorkerConfig:
    return WorkerConfig(
        model=options.model, max_model_len=options.max_model_len, kv_cache_bytes=options.kv_cache_bytes
    )


def _memory(
    options: EngineOptions,
    gpu: Gpu,
    spec: DecoderSpec,
    parameters: Iterable[Parameter],
    layout: KVLayout,
    dtype: torch.dtype,
    longest: int,
) -> MemoryPlan:
    budget = options.max_num_batched_tokens or CUDA_BATCHED_TOKENS
    rows = min(options.max_num_seqs, budget)
    draw_bytes = rows * spec.embedding.vocab_size * _DRAW_BYTES
    forward_bytes = budget * dtype.itemsize * _widest_block(spec, parameters)
    return MemoryPlan(
        device_bytes=gpu.memory_bytes,
        limit_bytes=int(gpu.memory_bytes * options.gpu_memory_fraction),
        weights_bytes=sum(
            prod(parameter.shape) * (parameter.dtype or dtype).itemsize for parameter in parameters
        ),
        other_bytes=CONTEXT_BYTES,
        tables_bytes=tables_bytes(layout, options.max_num_seqs, longest),
        step_bytes=max(draw_bytes, forward_bytes, penalty_bytes(options.max_num_seqs, longest)),
        graphs_bytes=0 if options.graphs == "none" else int(options.graph_memory_gib * 2**30),
    )


def _widest_block(spec: DecoderSpec, parameters: Iterable[Parameter]) -> int:
    """Numbers a token has in memory at a time: the stream, its norm, and what a block's matrices make."""
    widths: dict[str, int] = {}
    for parameter in parameters:
        layer, inside = _place(parameter.name)
        if layer is None or parameter.kind != "matrix":
            continue
        rows, columns = parameter.shape[-2:]
        inner = columns if columns != spec.hidden_size else 0  # what the block itself made
        copies = 1 if parameter.lead == 1 else _top_k(spec.layers[layer])
        block = f"{layer}.{inside.partition('.')[0]}"
        widths[block] = widths.get(block, 0) + copies * (rows + inner)
    return 2 * spec.hidden_size + max(widths.values(), default=0)


def _place(name: str) -> tuple[int | None, str]:
    """A parameter's layer and its name there; None outside the layers."""
    head, _, rest = name.partition(".")
    if head != "layers":
        return None, name
    index, _, inside = rest.partition(".")
    return int(index), inside


def _top_k(part: object) -> int:
    """Experts a token, of a mixture somewhere in a layer's description; 1 where there is none."""
    if isinstance(part, MoE):
        return part.router.top_k
    if isinstance(part, tuple | list):
        return max((_top_k(item) for item in part), default=1)
    if is_dataclass(part):
        return max((_top_k(getattr(part, field.name)) for field in fields(part)), default=1)
    return 1


class _Reading:
    """What a decode step must read of the weights and multiply by them."""

    def __init__(self, spec: DecoderSpec, parameters: Iterable[Parameter], dtype: torch.dtype) -> None:
        # (bytes, numbers, share that a token needs, whether they are e4m3)
        self._parts: list[tuple[float, float, float, bool]] = []
        for parameter in parameters:
            if parameter.name.startswith("embedding.") and not spec.head.tied:
                continue  # a row a token
            size, of = float(prod(parameter.shape)), parameter.dtype or dtype
            layer, _ = _place(parameter.name)
            share = 1.0
            if parameter.lead > 1 and layer is not None:
                share = min(1.0, _top_k(spec.layers[layer]) / parameter.shape[0])
            self._parts.append((size * of.itemsize, size, share, of == torch.float8_e4m3fn))

    def read_bytes(self, rows: int) -> float:
        """Bytes of the weights that so many tokens read: of the experts, those that anyone chose."""
        return sum(num_bytes * (1 - (1 - share) ** rows) for num_bytes, _, share, _ in self._parts)

    def arithmetic_s(self, rows: int, gpu: Gpu) -> float:
        """Seconds of the matrix products of so many tokens."""
        return sum(
            2 * rows * size * share / (gpu.fp8_flops_per_s if is_fp8 else gpu.flops_per_s)
            for _, size, share, is_fp8 in self._parts
        )


def _floors(
    options: EngineOptions,
    gpu: Gpu,
    layout: KVLayout,
    num_blocks: int,
    max_model_len: int,
    reading: _Reading,
) -> Iterable[DecodeFloor]:
    context = min(_FLOOR_CONTEXT, max_model_len)
    pages = layout.pages(context)
    for rows in _ROWS:
        if rows <= options.max_num_seqs and rows * pages <= num_blocks:
            read_s = (reading.read_bytes(rows) + rows * pages * layout.page_bytes) / gpu.read_bytes_per_s
            step_s = max(read_s, reading.arithmetic_s(rows, gpu))
            yield DecodeFloor(rows=rows, context=context, step_ms=1e3 * step_s, tokens_per_s=rows / step_s)
