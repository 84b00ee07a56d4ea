"""Owns how an architecture's checkpoint names map to canonical names; knows nothing about files.

A checkpoint may keep several layers in one tensor (fused QKV, stacked experts), transposed, or interleaved.
`Names` says so as data; `sources` turns it into, for each canonical tensor, where to look and what to take.
Everything taken is a view: no data moves before it is copied into its place.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from torch import Tensor

_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Fused:
    """One checkpoint tensor that holds several canonical ones, or one in another layout.

    Attributes:
        targets: Canonical names of what it holds, in order.
        split: `rows`: one below the other. `groups`: `groups` times (a share of the first, of the second,
            ...), as fused QKV with the heads of a KV group together. `alternating`: row by row.
        groups: For `groups`.
        transposed: It is stored as [inputs, outputs].
        stacked: Its first dimension counts experts; the targets have an `{e}`.
        flat_experts: For stacked ones whose experts lie below each other in the first dimension: how many.
    """

    targets: tuple[str, ...]
    split: Literal["rows", "groups", "alternating"] = "rows"
    groups: int = 1
    transposed: bool = False
    stacked: bool = False
    flat_experts: int = 0

    def take(self, whole: Tensor, target: int, expert: int, rows: Sequence[int]) -> Tensor:
        """The view of `whole` that is target number `target`.

        Args:
            whole: The checkpoint tensor.
            target: Index into `targets`.
            expert: Which of the stacked tensors.
            rows: Rows of each target.

        Raises:
            ValueError, RuntimeError, IndexError: The tensor's shape does not fit.
        """
        if self.flat_experts:
            whole = whole.reshape(self.flat_experts, -1, *whole.shape[1:])
        x = whole[expert] if self.stacked else whole
        if self.transposed and x.dim() > 1:
            x = x.transpose(-1, -2)
        if len(self.targets) == 1:
            return x
        if x.shape[0] != sum(rows):
            raise ValueError(f"has {x.shape[0]} rows, not {sum(rows)}")
        if self.split == "alternating":
            return x[target :: len(self.targets)]
        first = sum(rows[:target])
        if self.split == "rows":
            return x[first : first + rows[target]]
        share = x.reshape(self.groups, -1, *x.shape[1:])
        start, size = first // self.groups, rows[target] // self.groups
        return share[:, start : start + size].flatten(0, 1)


Target: TypeAlias = str | Fused


def rows(*targets: str, transposed: bool = False, stacked: bool = False) -> Fused:
    """Several layers one below the other."""
    return Fused(targets, transposed=transposed, stacked=stacked)


def groups(count: int, *targets: str) -> Fused:
    """Several layers, interleaved by `count` groups of heads."""
    return Fused(targets, split="groups", groups=count)


def alternating(*targets: str, transposed: bool = False, stacked: bool = False) -> Fused:
    """Several layers whose rows take turns."""
    return Fused(targets, split="alternating", transposed=transposed, stacked=stacked)


def transposed(target: str) -> Fused:
    """One layer stored as [inputs, outputs]."""
    return Fused((target,), transposed=True)


def stacked(target: str, *, transposed: bool = False, flat_experts: int = 0) -> Fused:
    """One layer of every expert, along the first dimension."""
    return Fused((target,), transposed=transposed, stacked=True, flat_experts=flat_experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Checkpoint names, by module or by full tensor name, with what they hold.

    `{i}` stands for the layer, `{e}` for the expert. A name without `.weight` or `.bias` stands for both.

    Attributes:
        top: Names outside the layers.
        layer: What comes before a layer's names, with `{i}`.
        inside: Names inside a layer, to canonical names inside the layer.
        optional_prefix: What checkpoints of the bare model leave out at the start of every name.
        harmless: Regular expressions of tensors that may be there although nothing needs them.
    """

    top: Mapping[str, Target]
    layer: str
    inside: Mapping[str, Target]
    optional_prefix: str = ""
    harmless: tuple[str, ...] = ()

    def but(
        self,
        inside: Mapping[str, Target] | None = None,
        *,
        top: Mapping[str, Target] | None = None,
        layer: str | None = None,
        without: tuple[str, ...] = (),
        harmless: tuple[str, ...] = (),
        optional_prefix: str | None = None,
    ) -> "Names":
        """These names with some added or replaced, and those `without` left out."""
        kept = {name: target for name, target in self.inside.items() if name not in without}
        kept_top = {name: target for name, target in self.top.items() if name not in without}
        return replace(
            self,
            top={**kept_top, **(top or {})},
            layer=self.layer if layer is None else layer,
            inside={**kept, **(inside or {})},
            harmless=self.harmless + harmless,
            optional_prefix=self.optional_prefix if optional_prefix is None else optional_prefix,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Where one canonical tensor may be found."""

    tensor: str
    fused: Fused
    target: int
    expert: int
    leaf: str

    @property
    def siblings(self) -> tuple[str, ...]:
        """Canonical patterns of all that the checkpoint tensor holds."""
        return tuple(target + self.leaf for target in self.fused.targets)


@dataclass(frozen=True, slots=True)
class _Entry:
    checkpoint: str
    fused: Fused
    target: int


@dataclass(slots=True)
class NameIndex:
    """Answers where canonical tensors are kept."""

    names: Names
    _entries: dict[str, list[_Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = list(self.names.top.items())
        for name, target in self.names.inside.items():
            pairs.append((f"{self.names.layer}.{name}" if name else self.names.layer, in_layer(target)))
        for checkpoint, target in pairs:
            fused = target if isinstance(target, Fused) else Fused((target,))
            for index, canonical in enumerate(fused.targets):
                self._entries.setdefault(canonical, []).append(_Entry(checkpoint, fused, index))

    def sources(self, canonical: str) -> list[Source]:
        """Every place where the tensor may be, the likeliest first; empty when the map has none."""
        pattern, numbers = _pattern(canonical)
        module, _, leaf = pattern.rpartition(".")
        found = []
        for key, rest in ((pattern, ""), (module, f".{leaf}")):
            for entry in self._entries.get(key, ()):
                tensor = entry.checkpoint.format(**numbers) + rest
                found.append(Source(tensor, entry.fused, entry.target, numbers.get("e", 0), rest))
                prefix = self.names.optional_prefix
                if prefix and tensor.startswith(prefix):
                    bare = tensor.removeprefix(prefix)
                    found.append(Source(bare, entry.fused, entry.target, numbers.get("e", 0), rest))
        return found

    def harmless(self, tensor: str) -> bool:
        """Whether a checkpoint may hold the tensor without the model needing it."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.names.harmless)


def fill_in(pattern: str, canonical: str) -> str:
    """The canonical name that `pattern` stands for in the layer and expert of `canonical`."""
    return pattern.format(**_pattern(canonical)[1])


def in_layer(target: Target) -> Target:
    """A target inside a layer, as it is called from outside."""
    if isinstance(target, Fused):
        return replace(target, targets=tuple(f"layers.{{i}}.{name}" for name in target.targets))
    return f"layers.{{i}}.{target}"


def _pattern(canonical: str) -> tuple[str, dict[str, int]]:
    """`layers.3.moe.experts.5.up.weight` to `layers.{i}.moe.experts.{e}.up.weight` and i = 3, e = 5."""
    numbers: dict[str, int] = {}
    keys = iter("ie" if canonical.startswith(("layers.", "encoder.layers.")) else "e")

    def replace_number(match: re.Match[str]) -> str:
        key = next(keys)
        numbers[key] = int(match.group(1))
        return f".{{{key}}}"

    return _NUMBER.sub(replace_number, canonical), numbers


ROTARY_BUFFERS = (r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)",)
"""Tables that some old checkpoints hold; they follow from the config."""

LLAMA_NAMES = Names(
    top={"model.embed_tokens": "embedding", "model.norm": "final_norm", "lm_head": "head"},
    layer="model.layers.{i}",
    inside={
        "input_layernorm": "attention.norm",
        "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key",
        "self_attn.v_proj": "attention.value",
        "self_attn.o_proj": "attention.output",
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
        "post_attention_layernorm": "mlp.norm",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.up",
        "mlp.down_proj": "mlp.down",
    },
    optional_prefix="model.",
    harmless=ROTARY_BUFFERS,
)
"""The names of Llama, which most later architectures share."""
