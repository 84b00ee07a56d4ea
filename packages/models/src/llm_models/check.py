"""Owns saying whether a checkpoint would load and what it would need, from its config and headers alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch

from llm_models.caches import CacheSpec, CrossCacheSpec, KVCacheSpec, LatentCacheSpec, StateCacheSpec
from llm_models.catalog import kind_of
from llm_models.config import architecture_name, checkpoint_dtype
from llm_models.decoder import decoder_caches, decoder_parameters
from llm_models.encoder_decoder import encoder_decoder_parameters
from llm_models.errors import ModelError, ShardingError, UnknownArchitecture
from llm_models.fallback import fallback_verdict
from llm_models.files import ModelFiles, resolve
from llm_models.loading.assign import plan_weights
from llm_models.loading.open_source import open_source
from llm_models.parameters import Parameter, Shard
from llm_models.pooling import pooled_parameters
from llm_models.quantization import read_scheme
from llm_models.registry import (
    encoder_decoder_spec_for,
    is_native,
    known_architectures,
    pooled_spec_for,
    spec_for,
)
from llm_models.spec import DecoderSpec

Parameters: TypeAlias = Callable[[Shard], Sequence[Parameter]]

RANKS = (2, 4, 8)
"""Numbers of ranks for which a report says whether the layers can be shared out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What a look at a checkpoint's config and headers says.

    Attributes:
        model: What was asked for.
        architecture: Its name in the config.
        standing: `native`, `paged`, `recompute` or `unsupported`.
        kind: `decoder`, `pooling` or `encoder-decoder`.
        problem: Why it would not load, in one line; None if it would.
        dtype: The number format that it was saved for; None where it does not say.
        num_parameters: Of the whole model; 0 where only loading would tell.
        weight_bytes: Of the whole model in that format (16 bits where it does not say).
        max_positions: Longest sequence.
        kv_bytes_per_token: What a token adds to the caches of a sequence.
        state_bytes: What a sequence keeps however long it is.
        caches: Kinds of cache, each with the number of layers that have it.
        ranks: Of `RANKS`, those among which the layers can be shared out.
    """

    model: str
    architecture: str
    standing: str
    kind: str = "decoder"
    problem: str | None = None
    dtype: str | None = None
    num_parameters: int = 0
    weight_bytes: int = 0
    max_positions: int = 0
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    caches: tuple[tuple[str, int], ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def loads(self) -> bool:
        """Whether nothing speaks against loading it."""
        return self.problem is None


def check_checkpoint(
    model: str, *, offline: bool = False, allow_pickle: bool = False, trust_remote_code: bool = False
) -> CheckpointReport:
    """Looks at a model without reading weights: config, names, shapes and sizes of tensors.

    Args:
        model: As `resolve` takes it.
        offline: Fetch nothing.
        allow_pickle: Weights may be in pickle files.
        trust_remote_code: Model code in the checkpoint may be run.

    Raises:
        ModelNotFound: There is no such model.
        ConfigError: The config cannot be read, or names no architecture.
    """
    files = resolve(model, offline=offline, allow_pickle=allow_pickle)
    name = architecture_name(files.config)
    if not is_native(name):
        return _through_fallback(model, files, trust_remote_code=trust_remote_code)
    try:
        return _native(model, name, files)
    except ModelError as error:
        return CheckpointReport(model=model, architecture=name, standing="native", problem=str(error))


def _through_fallback(model: str, files: ModelFiles, *, trust_remote_code: bool) -> CheckpointReport:
    name = architecture_name(files.config)
    verdict = fallback_verdict(files.config, trust_remote_code=trust_remote_code)
    problem = verdict.reason if verdict.kind == "unsupported" else None
    if problem is not None:
        problem = str(UnknownArchitecture(name, known_architectures(), fallback=problem))
    return CheckpointReport(model=model, architecture=name, standing=verdict.kind, problem=problem)


def _native(model: str, name: str, files: ModelFiles) -> CheckpointReport:
    kind = kind_of(name)
    spec, parameters = _parts(kind, files.config)
    wanted: Sequence[Parameter] = parameters(Shard())
    dtype = checkpoint_dtype(files.config)
    width = torch.bfloat16 if dtype is None else dtype
    caches = () if kind == "pooling" else decoder_caches(spec)
    source = open_source(files.path, files.kind)
    wanted = plan_weights(wanted, spec, source, read_scheme(files.config)).parameters
    sizes = [(prod(parameter.shape), parameter.dtype or width) for parameter in wanted]
    states = [cache for cache in caches if isinstance(cache, StateCacheSpec)]
    return CheckpointReport(
        model=model,
        architecture=name,
        standing="native",
        kind=kind,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        num_parameters=sum(count for count, _ in sizes),
        weight_bytes=sum(count * of.itemsize for count, of in sizes),
        max_positions=spec.max_positions,
        kv_bytes_per_token=sum(
            cache.bytes_per_block(1, width) for cache in caches if not isinstance(cache, StateCacheSpec)
        ),
        state_bytes=sum(cache.bytes_per_block(1, width) for cache in states),
        caches=_kinds(caches),
        ranks=tuple(ranks for ranks in RANKS if _can_share(parameters, ranks)),
    )


def _parts(kind: str, config: Mapping[str, Any]) -> tuple[DecoderSpec, Parameters]:
    """The decoder (or the body of what pools), and what makes the whole model's parameters on a rank."""
    if kind == "pooling":
        pooled = pooled_spec_for(config)
        return pooled.body, partial(pooled_parameters, pooled)
    if kind == "encoder-decoder":
        both = encoder_decoder_spec_for(config)
        return both.decoder, partial(encoder_decoder_parameters, both)
    spec = spec_for(config)
    return spec, partial(decoder_parameters, spec)


def _can_share(parameters: Parameters, ranks: int) -> bool:
    try:
        parameters(Shard(0, ranks))
    except ShardingError:
        return False
    return True


def _kinds(caches: Sequence[CacheSpec]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for cache in caches:
        kind = _kind(cache)
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(counts.items())


def _kind(cache: CacheSpec) -> str:
    match cache:
        case KVCacheSpec(window=None, chunk=None):
            return "full"
        case KVCacheSpec(window=None):
            return "chunked"
        case KVCacheSpec(window=window):
            return f"window {window}"
        case LatentCacheSpec():
            return "latent"
        case StateCacheSpec():
            return "state"
        case CrossCacheSpec():
            return "cross"
