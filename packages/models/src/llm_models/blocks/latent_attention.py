"""Owns multi-head latent attention (MLA): data, parameters and runtime.

Keys and values are projections of one small latent a token, which alone is cached. The projections are
absorbed: queries are taken into the latent's space, and outputs out of it (DeepSeek-V2, arXiv:2405.04434).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, LatentCacheSpec
from llm_models.parameters import Parameter, Shard, linear
from llm_models.rope import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Attention over a cached latent.

    Canonical names: query_down, query_norm, query (the only query projection, or the one up from its latent),
    latent (down to the latent and the rope key), latent_norm, key_value (up to keys and values, head by
    head), gate, output.

    Attributes:
        num_heads: Heads.
        plain_size: Dimensions of a query and key without position.
        rope_size: Dimensions that turn; all heads share those of the key.
        value_size: Of a value head.
        latent_size: Of the latent that keys and values come from.
        scale: Factor of the scores.
        norm: Of the latents.
        rope: How positions turn; None: they do not, but the rope dimensions are there.
        query_latent_size: Of the latent that queries come from; None: from the hidden states.
        bias: Biases of the projections down and of the output.
        query_scale: Factor of the normed query latent.
        latent_scale: Factor of the normed latent.
        gate: Whether a sigmoid of another projection of the input scales each head's output.
        name: First part of its canonical names.
    """

    num_heads: int
    plain_size: int
    rope_size: int
    value_size: int
    latent_size: int
    scale: float
    norm: Norm
    rope: Rope | None
    query_latent_size: int | None = None
    bias: bool = False
    query_scale: float = 1.0
    latent_scale: float = 1.0
    gate: bool = False
    name: str = "attention"

    @property
    def head_size(self) -> int:
        """Of queries and keys."""
        return self.plain_size + self.rope_size

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Projections to and from heads are cut by heads; those down to latents are whole on each rank."""
        first, end = shard.span(self.num_heads, "num_attention_heads")

        def heads(size: int) -> tuple[int, int]:
            return first * size, end * size

        source = width
        if self.query_latent_size is not None:
            source = self.query_latent_size
            yield from linear("query_down", source, width, bias=self.bias)
            yield from self.norm.parameters("query_norm", source)
        yield from linear("query", self.num_heads * self.head_size, source, taken_rows=heads(self.head_size))
        yield from linear("latent", self.latent_size + self.rope_size, width, bias=self.bias)
        yield from self.norm.parameters("latent_norm", self.latent_size)
        pair = self.plain_size + self.value_size
        if self.gate:
            yield from linear("gate", self.num_heads, width, taken_rows=heads(1))
        yield from linear(
            "key_value",
            self.num_heads * pair,
            self.latent_size,
            taken_rows=heads(pair),
            quantizable=False,
        )
        yield from linear(
            "output",
            width,
            self.num_heads * self.value_size,
            bias=self.bias,
            taken_columns=heads(self.value_size),
        )

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The latent and the rope key; every rank holds them whole."""
        return (LatentCacheSpec(size=self.latent_size + self.rope_size),)

    def build(self, weights: Weights, setup: Setup) -> "RunningLatentAttention":
        """The runtime."""
        return RunningLatentAttention(self, weights, setup)


class RunningLatentAttention:
    """The runtime of `LatentAttention`."""

    __slots__ = (
        "_cache",
        "_cos_sin",
        "_gate",
        "_heads",
        "_interleaved",
        "_key_HNR",
        "_latent",
        "_latent_norm",
        "_output",
        "_query",
        "_query_down",
        "_query_norm",
        "_spec",
        "_value_HVR",
    )

    def __init__(self, spec: LatentAttention, weights: Weights, setup: Setup) -> None:
        self._spec = spec
        self._heads = setup.shard.part(spec.num_heads, "num_attention_heads")
        self._query_down = self._query_norm = None
        if spec.query_latent_size is not None:
            self._query_down = Linear(weights, "query_down")
            self._query_norm = spec.norm.build(weights, "query_norm")
        self._query, self._latent = Linear(weights, "query"), Linear(weights, "latent")
        self._latent_norm = spec.norm.build(weights, "latent_norm")
        pairs = weights["key_value.weight"].view(self._heads, -1, spec.latent_size)
        self._key_HNR, self._value_HVR = pairs.split_with_sizes((spec.plain_size, spec.value_size), dim=1)
        self._gate = Linear(weights, "gate") if spec.gate else None
        self._output = SummedLinear(weights, "output", setup)
        self._cos_sin = None if spec.rope is None else setup.rope_table(spec.rope)
        self._interleaved = spec.rope is not None and spec.rope.interleaved
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        query_THD, latent_TL = self._project(x_TE, step)
        if step.packed is None:
            out_THV = self._attend(query_THD, latent_TL, step)
        else:
            out_THV = self._attend_packed(query_THD, latent_TL, step)
        if self._gate is not None:
            out_THV = out_THV * self._gate(x_TE).sigmoid()[:, :, None]
        return self._output(out_THV.flatten(1))

    def _project(self, x_TE: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Queries [T, H, plain + rope] and latents [T, latent + rope], normed and turned."""
        spec = self._spec
        source = x_TE
        if self._query_down is not None and self._query_norm is not None:
            source = self._query_down(x_TE)
            self._query_norm.apply(source, source)
            if spec.query_scale != 1.0:
                source *= spec.query_scale
        query_THD = self._query(source).view(len(x_TE), self._heads, spec.head_size)
        latent_TL = self._latent(x_TE)
        compressed_TR = latent_TL[:, : spec.latent_size]
        self._latent_norm.apply(compressed_TR, compressed_TR)
        if spec.latent_scale != 1.0:
            compressed_TR *= spec.latent_scale
        if self._cos_sin is not None:
            turning_THD = query_THD[..., spec.plain_size :]
            rope_key_T1D = latent_TL[:, None, spec.latent_size :]
            ops.rotary_embedding(
                turning_THD, rope_key_T1D, step.positions, self._cos_sin, interleaved=self._interleaved
            )
        return query_THD, latent_TL

    def _attend(self, query_THD: Tensor, latent_TL: Tensor, step: Step) -> Tensor:
        """Heads' outputs [T, H, value size] over the cached latents."""
        spec, metadata = self._spec, step.metadata[self._cache]
        (latent_cache,) = step.caches[self._cache]
        ops.write_latent(latent_TL, latent_cache, metadata.slot_mapping)
        plain_THN, turning_THD = query_THD.split_with_sizes((spec.plain_size, spec.rope_size), dim=-1)
        absorbed_THR = ops.head_linear(plain_THN, self._key_HNR.transpose(1, 2))
        query_THL = torch.cat((absorbed_THR, turning_THD), dim=-1)
        out_THR = torch.empty_like(absorbed_THR, memory_format=torch.contiguous_format)
        ops.latent_attention(
            out_THR, query_THL, latent_cache, metadata, scale=spec.scale, value_size=spec.latent_size
        )
        return ops.head_linear(out_THR, self._value_HVR)

    def _attend_packed(self, query_THD: Tensor, latent_TL: Tensor, step: Step) -> Tensor:
        """The same without a cache, with keys and values written out."""
        spec, packed = self._spec, step.packed
        assert packed is not None
        compressed_TR, rope_key_TD = latent_TL.split_with_sizes((spec.latent_size, spec.rope_size), dim=-1)
        plain_THN = torch.einsum("tr,hnr->thn", compressed_TR, self._key_HNR)
        value_THV = torch.einsum("tr,hvr->thv", compressed_TR, self._value_HVR)
        shared_THD = rope_key_TD[:, None].expand(-1, self._heads, -1)
        out_THV = torch.empty_like(value_THV, memory_format=torch.contiguous_format)
        ops.varlen_attention(
            out_THV,
            query_THD,
            torch.cat((plain_THN, shared_THD), dim=-1),
            value_THV.contiguous(),
            packed.cu_lens,
            packed.cu_lens,
            packed.max_len,
            packed.max_len,
            scale=spec.scale,
            causal=True,
        )
        return out_THV
