"""Owns the state space mixer of Mamba 2 (arXiv:2405.21060): data, parameters and runtime."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, StateCacheSpec
from llm_models.errors import ShardingError
from llm_models.parameters import Parameter, Part, Rows, Shard, linear, stacked_linear, tensor

PARTS = ("gate", "x", "B", "C", "step")
"""What the input projection holds, in the order in which most checkpoints store it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNorm:
    """Root-mean-square norm of the heads' outputs, in as many groups as B and C have.

    Attributes:
        eps: Added to the mean square.
        before_gate: Whether the gate comes after the norm instead of before it.
        groups: Groups of channels; None: as many as B and C have.
    """

    eps: float
    before_gate: bool = False
    groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A convolution over the last few tokens, then a scan with a scalar decay per head.

    Canonical names: gate, x, B, C, step; conv_x, conv_B, conv_C; step_bias, A_log, D, norm, output.

    Attributes:
        num_heads: Heads.
        head_size: Channels of a head.
        state_size: State of a channel.
        num_groups: Groups of heads that share B and C.
        conv_width: Tokens that the convolution sees.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the projections in and out have biases.
        output_bias: Whether that out has one; None: as `bias`.
        norm: Norm of the output; None: the gate alone.
        step_limit: Least and greatest step size.
        part_scales: Factors of what the input projection holds, in the order of `PARTS`.
        name: First part of its canonical names.
    """

    num_heads: int
    head_size: int
    state_size: int
    num_groups: int
    conv_width: int
    conv_bias: bool = True
    bias: bool = False
    output_bias: bool | None = None
    norm: GatedNorm | None
    step_limit: tuple[float, float] = (0.0, math.inf)
    part_scales: tuple[float, ...] | None = None
    name: str = "mamba"

    @property
    def inner_size(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_size

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by heads, B and C by groups."""
        rows = self._rows(shard)
        inner, heads = rows["x"].span, rows["step"].span
        yield from stacked_linear("input", rows, width, biases=PARTS if self.bias else ())
        convolved = {part: rows[part] for part in ("x", "B", "C")}
        sizes = [part.taken for part in convolved.values()]
        for leaf, shape in (("weight", (self.conv_width,)), ("bias", ())):
            if leaf == "bias" and not self.conv_bias:
                continue
            yield Parameter(
                name=f"conv.{leaf}",
                shape=(sum(sizes), *shape),
                kind="other",
                parts=tuple(
                    Part(name=f"conv_{name}.{leaf}", shape=(part.total, *shape), rows=part.span)
                    for name, part in convolved.items()
                ),
            )
        for name in ("step_bias", "A_log", "D"):
            yield tensor(name, (self.num_heads,), dtype=torch.float32, rows=heads)
        if self.norm is not None:
            yield tensor("norm.weight", (self.inner_size,), kind="norm", rows=inner)
        bias = self.bias if self.output_bias is None else self.output_bias
        yield from linear("output", width, self.inner_size, bias=bias, taken_columns=inner)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The convolution's last inputs, and the scan's state in float32."""
        rows = self._rows(shard)
        channels = sum(rows[part].taken for part in ("x", "B", "C"))
        state = (rows["step"].taken, self.head_size, self.state_size)
        return (
            StateCacheSpec(
                state_shapes=((channels, self.conv_width - 1), state), state_dtypes=(None, torch.float32)
            ),
        )

    def build(self, weights: Weights, setup: Setup) -> "RunningMamba2":
        """The runtime."""
        return RunningMamba2(self, weights, setup)

    def _rows(self, shard: Shard) -> dict[str, Rows]:
        first, end = shard.span(self.num_heads, "mamba_n_heads")
        groups = shard.replicated_span(self.num_groups, "mamba_n_groups")
        inner = Rows(self.inner_size, (first * self.head_size, end * self.head_size))
        shared = Rows(
            self.num_groups * self.state_size, (groups[0] * self.state_size, groups[1] * self.state_size)
        )
        step = Rows(self.num_heads, (first, end))
        return {"gate": inner, "x": inner, "B": shared, "C": shared, "step": step}


class RunningMamba2:
    """The runtime of `Mamba2`."""

    __slots__ = (
        "_A",
        "_D",
        "_cache",
        "_conv_bias",
        "_conv_weight",
        "_input",
        "_norm",
        "_output",
        "_scales",
        "_sizes",
        "_spec",
        "_step_bias",
    )

    def __init__(self, spec: Mamba2, weights: Weights, setup: Setup) -> None:
        self._spec = spec
        rows = spec._rows(setup.shard)
        self._sizes = {part: rows[part].taken for part in PARTS}
        self._input = Linear(weights, "input")
        self._scales: Tensor | None = None
        if spec.part_scales is not None:
            each = [
                torch.full((size,), scale)
                for size, scale in zip(self._sizes.values(), spec.part_scales, strict=True)
            ]
            self._scales = torch.cat(each).to(setup.device, setup.dtype)
        self._conv_weight, self._conv_bias = weights["conv.weight"], weights.get("conv.bias")
        self._A, self._D = -torch.exp(weights["A_log"]), weights["D"]
        self._step_bias = weights["step_bias"]
        self._norm = _GatedNormOp(spec, weights, setup)
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        spec, metadata, sizes = self._spec, step.metadata[self._cache], self._sizes
        conv_cache, state_cache = step.caches[self._cache]
        input_TI = self._input(x_TE)
        if self._scales is not None:
            input_TI *= self._scales
        mixed = sizes["x"] + sizes["B"] + sizes["C"]
        gate_TI, mixed_TC, step_TH = input_TI.split_with_sizes((sizes["gate"], mixed, sizes["step"]), dim=1)
        conv_TC = torch.empty(mixed_TC.shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.causal_conv1d(
            conv_TC,
            mixed_TC,
            self._conv_weight,
            self._conv_bias,
            conv_cache,
            metadata,
            block_size=metadata.block_size,
            activation="silu",
        )
        x, B, C = conv_TC.split_with_sizes((sizes["x"], sizes["B"], sizes["C"]), dim=1)
        x_THP = x.view(len(x_TE), sizes["step"], spec.head_size)
        out_THP = torch.empty(x_THP.shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.ssd_scan(
            out_THP,
            x_THP,
            step_TH,
            self._A,
            B.view(len(x_TE), -1, spec.state_size),
            C.view(len(x_TE), -1, spec.state_size),
            self._D,
            state_cache,
            metadata,
            block_size=metadata.block_size,
            dt_bias=self._step_bias,
            dt_limit=spec.step_limit,
        )
        return self._output(self._norm.apply(out_THP.flatten(1), gate_TI))


class _GatedNormOp:
    """Gate and norm of the heads' outputs."""

    __slots__ = ("_before_gate", "_eps", "_groups", "_setup", "_weight")

    def __init__(self, spec: Mamba2, weights: Weights, setup: Setup) -> None:
        self._weight = weights.get("norm.weight")
        self._setup: Setup | None = None
        if spec.norm is None:
            return
        self._eps, self._before_gate = spec.norm.eps, spec.norm.before_gate
        groups = spec.norm.groups or spec.num_groups
        if groups % setup.shard.size:
            # Several ranks share one group, which has its mean square from all of them.
            if groups > 1:
                reason = f"{groups} groups cannot be shared out equally among {setup.shard.size} ranks"
                raise ShardingError("mamba_n_groups", reason)
            self._setup = setup
        self._groups = max(groups // setup.shard.size, 1)

    def apply(self, out_TI: Tensor, gate_TI: Tensor) -> Tensor:
        """Both, in float32 inside."""
        gate = torch.nn.functional.silu(gate_TI.float())
        if self._weight is None:
            return (out_TI.float() * gate).to(out_TI.dtype)
        x = out_TI.float() if self._before_gate else out_TI.float() * gate
        x = x.reshape(len(x), self._groups, -1)
        square = x.square().mean(dim=-1, keepdim=True)
        if self._setup is not None:
            square = self._setup.sum_ranks(square) / self._setup.shard.size
        x = (x * torch.rsqrt(square + self._eps)).flatten(1) * self._weight
        return (x * gate if self._before_gate else x).to(out_TI.dtype)
