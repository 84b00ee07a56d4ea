"""Owns the scales that a checkpoint has for keys and values in e4m3: whose they are, and reading them.

They stand beside an attention's layers under several names; each is one number, or one a KV head. What they
are read into is only there where a checkpoint has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from llm_models.blocks.attention import CACHE_SCALES, Attention
from llm_models.errors import WrongScale, WrongShape
from llm_models.loading.placement import Placement
from llm_models.loading.source import TensorSource
from llm_models.parameters import ABSENT, Parameter, Part
from llm_models.spec import DecoderSpec

HARMLESS = (r"(.*\.)?(q_scale|k_scale|v_scale|kv_scale|prob_scale|prob_output_scale|output_scale)",)
"""Scales of a quantized cache, which a model whose cache is not quantized does without."""

_LEAVES = {"key": ("k_scale", "kv_scale"), "value": ("v_scale", "kv_scale")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScales:
    """The scales of one attention's keys, or of its values.

    Attributes:
        parameter: Name of what they are read into, float32, one a KV head of this rank.
        tensor: The checkpoint's name; None: they are 1.
        heads: First and end of this rank's KV heads.
        num_heads: KV heads of all ranks.
    """

    parameter: str
    tensor: str | None
    heads: tuple[int, int]
    num_heads: int

    def described(self) -> Parameter:
        """The parameter."""
        shape = (self.heads[1] - self.heads[0],)
        return Parameter(
            name=self.parameter,
            shape=shape,
            parts=(Part(name=ABSENT, shape=shape),),
            kind="other",
            dtype=torch.float32,
            default=1.0,
        )

    def fill(self, source: TensorSource, parameters: Mapping[str, Tensor]) -> None:
        """Reads them.

        Raises:
            WrongScale: One is not a number above 0.
            WeightError: The tensor cannot be read.
        """
        if self.tensor is None:
            return
        found = source.read(self.tensor).float().reshape(-1)
        if not bool(((found > 0) & found.isfinite()).all()):
            reason = f"holds {float(found.min())} as a scale, which must be a number above 0"
            raise WrongScale(source.tensors[self.tensor].file, self.tensor, reason)
        own = found if found.numel() == 1 else found[slice(*self.heads)]
        parameters[self.parameter].copy_(own.expand(self.heads[1] - self.heads[0]))


def find_cache_scales(
    wanted: Sequence[Parameter],
    spec: DecoderSpec,
    placed: Mapping[str, Sequence[Placement]],
    source: TensorSource,
) -> list[CacheScales]:
    """Those of keys and of values of every attention that has either in the files; reads headers only.

    Raises:
        WrongShape: A tensor is neither one number nor one a KV head.
    """
    parts = {part.name: part for parameter in wanted for part in parameter.parts}
    tensors = {one.part.name: one.source.tensor for placements in placed.values() for one in placements}
    found = []
    for number, layer in enumerate(spec.layers):
        for attention in _attentions(layer):
            prefix = f"layers.{number}.{attention.name}."
            if f"{prefix}key.weight" not in tensors:
                continue
            span = parts[f"{prefix}key.weight"].rows or (0, attention.num_kv_heads * attention.head_size)
            heads = (span[0] // attention.head_size, span[1] // attention.head_size)
            weights = [tensors[f"{prefix}{side}.weight"] for side in _LEAVES]
            is_fused = weights[0] == weights[1]
            names = [
                _stored(weight, side, source, is_fused=is_fused)
                for weight, side in zip(weights, _LEAVES, strict=True)
            ]
            if names == [None, None]:
                continue
            for parameter, name in zip(CACHE_SCALES, names, strict=True):
                _check_shape(name, attention.num_kv_heads, source)
                found.append(
                    CacheScales(
                        parameter=prefix + parameter,
                        tensor=name,
                        heads=heads,
                        num_heads=attention.num_kv_heads,
                    )
                )
    return found


def _attentions(part: object) -> Iterator[Attention]:
    """Those within a layer's description that have a cache of their own."""
    if isinstance(part, Attention):
        if part.kv_from is None and part.causal:
            yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from _attentions(one)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _attentions(getattr(part, field.name))


def _stored(weight: str, side: str, source: TensorSource, *, is_fused: bool) -> str | None:
    """The tensor with the scales, for one side's projection as the checkpoint calls it."""
    module = weight.removesuffix(".weight")
    parent = module.rpartition(".")[0]
    places = (f"{parent}.", f"{parent}.attn.", f"{module}.")
    names = [place + leaf for leaf in _LEAVES[side] for place in places]
    if not is_fused:
        names.append(f"{module}.output_scale")
    return next((name for name in names if name in source.tensors), None)


def _check_shape(name: str | None, num_heads: int, source: TensorSource) -> None:
    if name is None:
        return
    info = source.tensors[name]
    sizes = [size for size in info.shape if size != 1]
    if sizes not in ([], [num_heads]):
        reason = f"has shape {list(info.shape)}, which is neither one scale nor {num_heads}, one a KV head"
        raise WrongShape(info.file, name, reason)
