"""Owns attention with grouped KV heads: data, parameters and runtime; knows nothing about other mixers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Inputs, Linear, SummedLinear
from llm_models.blocks.narrow import Narrow
from llm_models.blocks.norm import Norm
from llm_models.blocks.relative_bias import RelativeBias
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, KVCacheSpec
from llm_models.errors import ConfigError
from llm_models.parameters import Parameter, Part, Shard, head_rows, linear, stacked_linear, tensor
from llm_models.rope import Rope

CACHE_SCALES = ("key_cache_scale", "value_cache_scale")
"""Parameters float32 [KV heads]: what a cache in e4m3 multiplies its keys and values by; both or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QKNorm:
    """Norms of queries and keys.

    Attributes:
        norm: Its kind.
        over: `head`: one head at a time, all with the same weights. `each_head`: one head at a time, each
            with weights of its own. `all`: all heads of the query (or key) together.
        after_rope: Whether it comes after the rotation.
        is_separate: For `each_head`: the checkpoint has a tensor a head (`query_norm.3`).
    """

    norm: Norm
    over: Literal["head", "each_head", "all"] = "head"
    after_rope: bool = False
    is_separate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTemperature:
    """Queries far into a text are scaled by `1 + factor * log(1 + floor((position + shift) / length))`."""

    factor: float
    length: int
    shift: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of queries over cached keys and values.

    Canonical names: query, key, value, output, gate, query_norm, key_norm, value_norm, output_norm, sinks.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; a divisor of `num_heads`.
        head_size: Of queries and keys.
        scale: Factor of the scores.
        rope: How positions turn queries and keys; None: they do not.
        value_size: Size of a value head; None: `head_size`.
        qkv_bias: Biases of query, key and value.
        key_bias: That of the key; None: as `qkv_bias`.
        output_bias: That of the output projection.
        qk_norm: Norms of queries and keys.
        value_norm: Norm of each value head.
        output_norm: Norm of all heads' outputs before the output projection.
        sliding_window: Latest keys a query sees, its own included (for encoders: to each side).
        chunk: A query sees only keys of its own chunk of so many tokens.
        soft_cap: Scores become `soft_cap * tanh(score / soft_cap)`.
        sinks: There is a logit per head that takes weight but gives no value.
        alibi_slopes: One a head: the score falls by it with each token of distance.
        clip: Queries, keys and values are clamped to this size.
        clip_after_norm: Whether they are clamped after the norms of queries and keys, not before.
        gate: What another projection of the input scales, through a sigmoid: each element of the heads'
            outputs, or each head.
        gate_bias: That of this projection; None: as `qkv_bias`.
        gate_activation: What stands in the sigmoid's place.
        temperature: Scales queries by their position.
        key_scale: Factor of the keys.
        value_scale: Factor of the values.
        kv_from: Layer whose keys and values are read instead of own ones.
        relative_bias: Biases of the scores by distance.
        causal: Whether a query sees only keys before it; without, there can be no cache.
        name: First part of its canonical names.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    rope: Rope | None = None
    value_size: int | None = None
    qkv_bias: bool = False
    key_bias: bool | None = None
    output_bias: bool = False
    qk_norm: QKNorm | None = None
    value_norm: Norm | None = None
    output_norm: Norm | None = None
    sliding_window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi_slopes: tuple[float, ...] | None = None
    clip: float | None = None
    clip_after_norm: bool = False
    gate: Literal["element", "head"] | None = None
    gate_bias: bool | None = None
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    temperature: QueryTemperature | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    kv_from: int | None = None
    relative_bias: RelativeBias | None = None
    causal: bool = True
    name: str = "attention"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            reason = f"{self.num_kv_heads} does not divide num_attention_heads {self.num_heads}"
            raise ConfigError("num_key_value_heads", reason)

    @property
    def value_head_size(self) -> int:
        """Size of a value head."""
        return self.value_size or self.head_size

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Input projections by heads, the output projection by its columns."""
        heads = shard.span(self.num_heads, "num_attention_heads")
        kv_heads = shard.replicated_span(self.num_kv_heads, "num_key_value_heads")
        size, value_size = self.head_size, self.value_head_size
        parts = {"query": head_rows(self.num_heads, heads, size)}
        if self.kv_from is None:
            parts["key"] = head_rows(self.num_kv_heads, kv_heads, size)
            parts["value"] = head_rows(self.num_kv_heads, kv_heads, value_size)
        if self.gate is not None:
            parts["gate"] = head_rows(self.num_heads, heads, value_size if self.gate == "element" else 1)
        yield from stacked_linear("input", parts, width, biases=self._biases(tuple(parts)))
        yield from self._norm_parameters(heads, kv_heads)
        if self.sinks:
            yield tensor("sinks", (self.num_heads,), dtype=torch.float32, rows=heads)
        if self.relative_bias is not None:
            yield from self.relative_bias.parameters(self.num_heads, heads)
        out = (heads[0] * value_size, heads[1] * value_size)
        yield from linear(
            "output", width, self.num_heads * value_size, bias=self.output_bias, taken_columns=out
        )

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Keys and values, unless another layer's are read or there is no cache."""
        if self.kv_from is not None or not self.causal:
            return ()
        first, end = shard.replicated_span(self.num_kv_heads, "num_key_value_heads")
        return (
            KVCacheSpec(
                num_kv_heads=end - first,
                head_size=self.head_size,
                value_size=self.value_head_size,
                window=self.sliding_window,
                chunk=self.chunk,
            ),
        )

    def build(self, weights: Weights, setup: Setup) -> "RunningAttention":
        """The runtime."""
        return RunningAttention(self, weights, setup)

    def _biases(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        stated = {"key": self.key_bias, "gate": self.gate_bias}
        has_bias = {part: self.qkv_bias if stated.get(part) is None else stated[part] for part in parts}
        return tuple(part for part in parts if has_bias[part])

    def _norm_parameters(self, heads: tuple[int, int], kv_heads: tuple[int, int]) -> Iterator[Parameter]:
        size = self.head_size
        sides = [("query_norm", self.num_heads, heads)]
        if self.kv_from is None:
            sides.append(("key_norm", self.num_kv_heads, kv_heads))
        if self.qk_norm is not None:
            for name, count, (first, end) in sides:
                if self.qk_norm.over == "head":
                    yield from self.qk_norm.norm.parameters(name, size)
                else:
                    rows = (first * size, end * size)
                    for parameter in self.qk_norm.norm.parameters(name, count * size, rows=rows):
                        if self.qk_norm.is_separate:
                            yield _with_part_per_head(parameter, count, range(first, end), size)
                        else:
                            yield parameter
        if self.value_norm is not None and self.kv_from is None:
            yield from self.value_norm.parameters("value_norm", self.value_head_size)
        if self.output_norm is not None:
            value_size = self.value_head_size
            rows = (heads[0] * value_size, heads[1] * value_size)
            yield from self.output_norm.parameters("output_norm", self.num_heads * value_size, rows=rows)


def _with_part_per_head(parameter: Parameter, count: int, own: range, size: int) -> Parameter:
    """The parameter of a rank's `own` heads out of `count`, from a tensor a head (of others come 0 rows)."""
    module, _, leaf = parameter.name.rpartition(".")
    parts = (
        Part(name=f"{module}.{head}.{leaf}", shape=(size,), rows=None if head in own else (0, 0))
        for head in range(count)
    )
    return replace(parameter, parts=tuple(parts))


class RunningAttention:
    """The runtime of `Attention`. What a spec leaves out costs one comparison a step."""

    __slots__ = (
        "_alibi_slopes",
        "_cache",
        "_cache_scales",
        "_cos_sin",
        "_gate_size",
        "_has_kv",
        "_heads",
        "_input",
        "_interleaved",
        "_is_fused",
        "_kv_heads",
        "_norms",
        "_output",
        "_output_norm",
        "_relative_bias",
        "_sinks",
        "_sizes",
        "_spec",
        "_value_norm",
    )

    def __init__(self, spec: Attention, weights: Weights, setup: Setup) -> None:
        shard = setup.shard
        self._spec = spec
        self._has_kv = spec.kv_from is None
        self._heads = shard.part(spec.num_heads, "num_attention_heads")
        first, end = shard.replicated_span(spec.num_kv_heads, "num_key_value_heads")
        self._kv_heads = end - first
        self._gate_size = {None: 0, "head": 1, "element": spec.value_head_size}[spec.gate]
        kv_sizes = (self._kv_heads * spec.head_size, self._kv_heads * spec.value_head_size)
        self._sizes = (
            self._heads * spec.head_size,
            *(kv_sizes if self._has_kv else (0, 0)),
            self._heads * self._gate_size,
        )
        self._input = Linear(weights, "input")
        self._output = SummedLinear(weights, "output", setup)
        self._norms = None if spec.qk_norm is None else _QKNormOp(spec, weights, setup)
        self._value_norm = None
        if spec.value_norm is not None and self._has_kv:
            self._value_norm = spec.value_norm.build(weights, "value_norm")
        norm = spec.output_norm
        self._output_norm = None if norm is None else norm.build(weights, "output_norm", split_over=setup)
        self._cos_sin = None if spec.rope is None else setup.rope_table(spec.rope)
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._sinks = weights.get("sinks")
        self._alibi_slopes = None
        if spec.alibi_slopes is not None:
            own = spec.alibi_slopes[slice(*shard.span(spec.num_heads, "num_attention_heads"))]
            self._alibi_slopes = torch.tensor(own, dtype=torch.float32, device=setup.device)
        bias = spec.relative_bias
        self._relative_bias = None if bias is None else bias.build(weights, setup, causal=spec.causal)
        self._cache = self._take_cache(setup)
        if (key_scale := weights.get(CACHE_SCALES[0])) is not None:
            setup.cache_scales[self._cache] = key_scale, weights[CACHE_SCALES[1]]
        self._cache_scales = setup.cache_scales.get(self._cache)
        self._is_fused = _has_common_form(spec)

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """See `Matrix.room`."""
        return self._input.room(tokens, dtype)

    def run(self, x_TE: Inputs, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        tokens, spec = x_TE.shape[0], self._spec
        query, key, value, gate = self._input(x_TE).split_with_sizes(self._sizes, dim=1)
        query_THD = query.view(tokens, self._heads, spec.head_size)
        if spec.clip is not None and not spec.clip_after_norm:
            _clamp(spec.clip, query, key, value)
        if self._has_kv:
            key_TKD = key.view(tokens, self._kv_heads, spec.head_size)
            value_TKV = value.view(tokens, self._kv_heads, spec.value_head_size)
        else:
            key_TKD, value_TKV = query_THD[:, :0], query_THD[:, :0]
        if self._is_fused and step.packed is None:
            self._prepare_and_write(query_THD, key_TKD, value_TKV, step)
        else:
            self._prepare(query_THD, key_TKD, value_TKV, step)
            self._write(key_TKD, value_TKV, step)
        out_THV = torch.empty(
            (tokens, self._heads, spec.value_head_size), dtype=x_TE.dtype, device=x_TE.device
        )
        self._attend(out_THV, query_THD, key_TKD, value_TKV, step)
        if self._gate_size:
            gate_THG = gate.view(tokens, self._heads, self._gate_size)
            if spec.gate_activation == "sigmoid":
                out_THV *= gate_THG.sigmoid()
            else:
                out_THV *= F.softplus(gate_THG.float()).to(out_THV.dtype)
        out_TO = out_THV.view(tokens, -1)
        if self._output_norm is not None:
            self._output_norm.apply(out_TO, out_TO)
        return self._output(out_TO)

    def _prepare_and_write(self, query_THD: Tensor, key_TKD: Tensor, value_TKV: Tensor, step: Step) -> None:
        """Norms, positions and the write to the cache at once, for the common form."""
        norms = self._norms
        key_cache, value_cache = step.caches[self._cache]
        key_scale, value_scale = self._scales_of(key_cache)
        ops.rotate_write_kv(
            query_THD,
            key_TKD,
            value_TKV,
            key_cache,
            value_cache,
            step.positions,
            step.metadata[self._cache].slot_mapping,
            self._cos_sin,
            query_weight=None if norms is None else norms.query_weight,
            key_weight=None if norms is None else norms.key_weight,
            eps=None if norms is None else norms.eps,
            interleaved=self._interleaved,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    def _scales_of(self, key_cache: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Those of keys and values: only a cache in e4m3 has any."""
        if self._cache_scales is None or key_cache.dtype != torch.float8_e4m3fn:
            return None, None
        return self._cache_scales

    def _write(self, key_TKD: Tensor, value_TKV: Tensor, step: Step) -> None:
        if self._has_kv and step.packed is None:
            key_cache, value_cache = step.caches[self._cache]
            slots = step.metadata[self._cache].slot_mapping
            key_scale, value_scale = self._scales_of(key_cache)
            ops.write_kv(
                key_TKD,
                value_TKV,
                key_cache,
                value_cache,
                slots,
                key_scale=key_scale,
                value_scale=value_scale,
            )

    def _prepare(self, query_THD: Tensor, key_TKD: Tensor, value_TKV: Tensor, step: Step) -> None:
        """Norms, positions and scales, in place."""
        spec, norms = self._spec, self._norms
        if norms is not None and not norms.after_rope:
            norms.apply(query_THD, key_TKD)
        if spec.clip is not None and spec.clip_after_norm:
            _clamp(spec.clip, query_THD, key_TKD, value_TKV)
        if self._cos_sin is not None:
            ops.rotary_embedding(
                query_THD, key_TKD, step.positions, self._cos_sin, interleaved=self._interleaved
            )
        if norms is not None and norms.after_rope:
            norms.apply(query_THD, key_TKD)
        if self._value_norm is not None:
            self._value_norm.apply(value_TKV, value_TKV)
        if spec.key_scale != 1.0:
            key_TKD *= spec.key_scale
        if spec.value_scale != 1.0:
            value_TKV *= spec.value_scale
        if spec.temperature is not None:
            far = torch.floor((step.positions + spec.temperature.shift) / spec.temperature.length)
            query_THD *= (1 + spec.temperature.factor * torch.log1p(far)).to(query_THD.dtype)[:, None, None]

    def _attend(
        self, out_THV: Tensor, query_THD: Tensor, key_TKD: Tensor, value_TKV: Tensor, step: Step
    ) -> None:
        spec = self._spec
        if step.packed is not None:
            ops.varlen_attention(
                out_THV,
                query_THD,
                key_TKD,
                value_TKV,
                step.packed.cu_lens,
                step.packed.cu_lens,
                step.packed.max_len,
                step.packed.max_len,
                scale=spec.scale,
                causal=spec.causal,
                sliding_window=spec.sliding_window,
                soft_cap=spec.soft_cap,
                alibi_slopes=self._alibi_slopes,
                bias=self._relative_bias,
            )
            return
        metadata, (key_cache, value_cache) = step.metadata[self._cache], step.caches[self._cache]
        key_scale, value_scale = self._scales_of(key_cache)
        ops.paged_attention(
            out_THV,
            query_THD,
            key_cache,
            value_cache,
            metadata,
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            soft_cap=spec.soft_cap,
            chunk=spec.chunk,
            sinks=self._sinks,
            alibi_slopes=self._alibi_slopes,
            distance_bias=None if self._relative_bias is None else self._relative_bias.by_distance,
            key_scale=key_scale,
            value_scale=value_scale,
        )

    def _take_cache(self, setup: Setup) -> int:
        if self._spec.kv_from is not None:
            return setup.attention_caches[self._spec.kv_from]
        if not self._spec.causal:
            return -1
        setup.attention_caches[setup.layer] = setup.next_cache()
        return setup.attention_caches[setup.layer]


def _has_common_form(spec: Attention) -> bool:
    """Whether `ops.rotate_write_kv` does all that comes between projection and attention."""
    norm = spec.qk_norm
    is_plain_norm = norm is None or (
        norm.over == "head" and not norm.after_rope and norm.norm.kind == "rms" and not norm.norm.bias
    )
    return (
        is_plain_norm
        and spec.causal
        and spec.kv_from is None
        and spec.clip is None
        and spec.value_norm is None
        and spec.temperature is None
        and spec.key_scale == spec.value_scale == 1.0
    )


def _clamp(limit: float, *parts: Tensor) -> None:
    for part in parts:
        part.clamp_(-limit, limit)


class _QKNormOp:
    """The norms of queries and keys, in place.

    Attributes:
        after_rope: As in `QKNorm`.
        eps: That of the norms.
        query_weight: Factors of the queries, if any; one a channel of a head where the norm is over heads.
        key_weight: Those of the keys.
    """

    __slots__ = ("_key", "_query", "after_rope", "eps", "key_weight", "query_weight")

    def __init__(self, spec: Attention, weights: Weights, setup: Setup) -> None:
        assert spec.qk_norm is not None
        self.after_rope = spec.qk_norm.after_rope
        self.eps = spec.qk_norm.norm.eps
        self.query_weight = weights.get("query_norm.weight")
        self.key_weight = weights.get("key_norm.weight")
        self._query = _HeadsNorm(spec.qk_norm, weights, "query_norm", setup)
        self._key = None if spec.kv_from is not None else _HeadsNorm(spec.qk_norm, weights, "key_norm", setup)

    def apply(self, query_THD: Tensor, key_TKD: Tensor) -> None:
        self._query.apply(query_THD)
        if self._key is not None:
            self._key.apply(key_TKD)


class _HeadsNorm:
    """The norm of queries or of keys."""

    __slots__ = ("_all", "_bias", "_each", "_norm")

    def __init__(self, spec: QKNorm, weights: Weights, name: str, setup: Setup) -> None:
        self._all, self._each, self._bias = spec.over == "all", None, None
        if spec.over == "each_head":
            self._each, self._bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
            self._norm = replace(spec.norm, weight=False, bias=False).build(weights, name)
        else:
            self._norm = spec.norm.build(weights, name, split_over=setup if self._all else None)

    def apply(self, x_THD: Tensor) -> None:
        if self._all:
            flat = x_THD.view(len(x_THD), -1)
            self._norm.apply(flat, flat)
            return
        self._norm.apply(x_THD, x_THD)
        if self._each is not None:
            x_THD *= self._each.view(x_THD.shape[1:])
        if self._bias is not None:
            x_THD += self._bias.view(x_THD.shape[1:])
