"""Owns mixtures of experts: data, parameters and runtime; the rule of the choice is the kernels'."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from llm_kernels import ops
from llm_kernels.routing_rule import GroupScore, Scoring
from torch import Tensor

from llm_models.activations import Activation
from llm_models.blocks.linear import Linear
from llm_models.blocks.mlp import MLP, RunningMLP
from llm_models.blocks.norm import Norm, normed
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Part, Shard, below, linear, scale_names, tensor

MOST_ASIDE = 256
"""Tokens up to which the shared MLP runs on a stream beside the experts: more tokens fill the GPU anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How tokens choose experts; `ops.route_experts` says which options give which known router.

    Canonical names: router, router.correction, router.norm, router.expert_scales.

    Attributes:
        top_k: Experts a token.
        scoring: How logits become scores.
        renormalize: Whether the chosen weights are divided by their sum.
        bias: Whether the logits have a bias.
        correction: Whether a learned bias is added to the scores for the choice only.
        groups: Groups of experts, of which only the best `top_groups` are eligible.
        top_groups: See `groups`.
        group_score: A group's worth.
        scale: Factor of the weights.
        renormalize_eps: Added to the sum before the division.
        jitter_eps: Of the scoring `sparsemixer`.
        soft_cap: Logits become `soft_cap * tanh(logit / soft_cap)`, in float32.
        in_float32: Whether the logits are computed in float32 whatever the model's number format.
        norm: Norm of the router's own input; None: it reads the block's.
        input_scale: Factor of that input.
        expert_scales: Whether the chosen weights are multiplied by a trained number an expert.
    """

    top_k: int
    scoring: Scoring = "softmax"
    renormalize: bool = False
    bias: bool = False
    correction: bool = False
    groups: int | None = None
    top_groups: int | None = None
    group_score: GroupScore = "top2"
    scale: float = 1.0
    renormalize_eps: float = 1e-20
    jitter_eps: float = 0.01
    soft_cap: float | None = None
    in_float32: bool = False
    norm: Norm | None = None
    input_scale: float = 1.0
    expert_scales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """A weighted sum of a few expert MLPs a token, and what every token passes through.

    It is called `mlp` like the dense block, so that a norm before either has one canonical name.

    Canonical names: router, experts.N.gate, experts.N.up, experts.N.down, shared.*, shared_gate, latent_in,
    latent_out, experts_norm, sum.bias.

    Attributes:
        num_experts: Experts to choose from.
        expert_size: Width inside an expert.
        router: How they are chosen.
        activation: Of the gate.
        gated: Whether experts have a gate.
        bias: Whether the experts' projections have biases.
        limit: Clamp of gate and up (gpt-oss).
        alpha: Factor inside the sigmoid of the gate (gpt-oss).
        weight_input: Whether the weight multiplies an expert's input instead of its output.
        zero_experts: Choices past the experts that return their input.
        shared: An MLP that every token passes through; its name must be `shared`.
        shared_gate: Whether a sigmoid of a projection of the input scales the shared MLP's output.
        scale: Factor of the experts' sum.
        sum_bias: Whether a bias is added to their sum.
        latent_size: Features that the experts read and write, where a projection leads to them and another
            one back; None: the hidden size.
        latent_bias: Whether these projections have biases.
        experts_norm: Norm of what the experts read, but not the router.
        name: First part of its canonical names.
    """

    num_experts: int
    expert_size: int
    router: Router
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    alpha: float | None = None
    weight_input: bool = False
    zero_experts: int = 0
    shared: MLP | None = None
    shared_gate: bool = False
    scale: float = 1.0
    sum_bias: bool = False
    latent_size: int | None = None
    latent_bias: bool = False
    experts_norm: Norm | None = None
    name: str = "mlp"

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Experts are cut along their width; where that does not divide, each rank holds some of them."""
        choices = self.num_experts + self.zero_experts
        yield from linear("router", choices, width, bias=self.router.bias, quantizable=False)
        if self.router.correction:
            yield tensor("router.correction", (choices,), dtype=torch.float32)
        if self.router.norm is not None:
            yield from self.router.norm.parameters("router.norm", width)
        if self.router.expert_scales:
            yield tensor("router.expert_scales", (choices,), dtype=torch.float32)
        if self.experts_norm is not None:
            yield from self.experts_norm.parameters("experts_norm", width)
        if self.latent_size is not None:
            yield from linear("latent_in", self.latent_size, width, bias=self.latent_bias)
            yield from linear("latent_out", width, self.latent_size, bias=self.latent_bias)
        if self.sum_bias:
            yield tensor("sum.bias", (width,), kind="bias")
        if self.shared is not None:
            yield from below("shared.", self.shared.parameters(width, shard))
        if self.shared_gate:
            yield from linear("shared_gate", 1, width, quantizable=False)
        yield from self._expert_parameters(self.latent_size or width, shard)

    def _expert_parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        experts, inner = self.cut(shard)
        sides = ("gate", "up") if self.gated else ("up",)
        count, rows = experts[1] - experts[0], inner[1] - inner[0]

        def part(name: str, shape: tuple[int, ...], span: tuple[int, int] | None = None) -> Iterator[Part]:
            """A part an expert: these rows of the rank's own experts, none of others."""
            for e in range(self.num_experts):
                is_own = experts[0] <= e < experts[1]
                yield Part(name=f"experts.{e}.{name}", shape=shape, rows=span if is_own else (0, 0))

        def input_parts(leaf: str, *columns: int) -> tuple[Part, ...]:
            by_side = [part(f"{side}.{leaf}", (self.expert_size, *columns), inner) for side in sides]
            return tuple(found for expert in zip(*by_side, strict=True) for found in expert)

        yield Parameter(
            name="experts.input.weight",
            shape=(count, len(sides) * rows, width),
            lead=2,
            parts=input_parts("weight", width),
            quantizable=True,
        )
        down = part("down.weight", (width, self.expert_size))
        yield Parameter(
            name="experts.down.weight",
            shape=(count, width, rows),
            lead=2,
            parts=tuple(replace(found, columns=inner) for found in down),
            quantizable=True,
        )
        if self.bias:
            yield Parameter(
                name="experts.input.bias",
                shape=(count, len(sides) * rows),
                kind="bias",
                lead=2,
                parts=input_parts("bias"),
            )
            yield Parameter(
                name="experts.down.bias",
                shape=(count, width),
                kind="bias",
                lead=2,
                parts=tuple(part("down.bias", (width,))),
            )

    def cut(self, shard: Shard) -> tuple[tuple[int, int], tuple[int, int]]:
        """First and end of this rank's experts, and of what it holds of their width."""
        if self.expert_size % shard.size and not self.num_experts % shard.size:
            return shard.span(self.num_experts, "num_experts"), (0, self.expert_size)
        return (0, self.num_experts), shard.span(self.expert_size, "moe_intermediate_size")

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """None."""
        return ()

    def build(self, weights: Weights, setup: Setup) -> "RunningMoE":
        """The runtime."""
        return RunningMoE(self, weights, setup)


class RunningMoE:
    """The runtime of `MoE`."""

    __slots__ = (
        "_aside",
        "_down",
        "_down_bias",
        "_down_scale",
        "_experts_norm",
        "_first_expert",
        "_input",
        "_input_bias",
        "_input_scale",
        "_latent_in",
        "_latent_out",
        "_num_local",
        "_router",
        "_setup",
        "_shared",
        "_shared_gate",
        "_spec",
        "_sum_bias",
    )

    def __init__(self, spec: MoE, weights: Weights, setup: Setup) -> None:
        (self._first_expert, end), _ = spec.cut(setup.shard)
        self._num_local = end - self._first_expert
        self._spec, self._setup = spec, setup
        self._router = _RouterOp(spec.router, weights)
        self._input, self._input_bias = weights["experts.input.weight"], weights.get("experts.input.bias")
        self._down, self._down_bias = weights["experts.down.weight"], weights.get("experts.down.bias")
        # An e4m3 weight has scales beside it.
        self._input_scale, self._down_scale = (
            weights.get(scale_names(f"experts.{side}.weight")[0]) for side in ("input", "down")
        )
        if setup.shard.rank > 0 and self._num_local == spec.num_experts:
            self._down_bias = None  # The sum over the ranks must hold it once.
        norm = spec.experts_norm
        self._experts_norm = None if norm is None else norm.build(weights, "experts_norm")
        self._shared: RunningMLP | None = None
        if spec.shared is not None:
            self._shared = spec.shared.build(weights.below("shared."), setup)
        # Ranks must issue their sums in one order, so they do one after the other.
        is_alone = setup.device.type == "cuda" and setup.shard.size == 1
        self._aside = _side_stream(setup.device) if is_alone and spec.shared is not None else None
        self._shared_gate = Linear(weights, "shared_gate") if spec.shared_gate else None
        self._sum_bias = weights.get("sum.bias")
        self._latent_in = self._latent_out = None
        if spec.latent_size is not None:
            self._latent_in, self._latent_out = Linear(weights, "latent_in"), Linear(weights, "latent_out")

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        if self._shared is None:
            return self._routed(x_TE)
        if self._aside is None or x_TE.shape[0] > MOST_ASIDE:
            return self._routed(x_TE).add_(self._shared_part(self._shared, x_TE, step))
        # All that the side stream reads and writes is ordered by these two waits, its memory too: it is given
        # out again on the side stream only, after a wait for what the main stream did with it.
        main = torch.cuda.current_stream(x_TE.device)
        self._aside.wait_stream(main)
        with torch.cuda.stream(self._aside):
            shared_TE = self._shared_part(self._shared, x_TE, step)
        out_TE = self._routed(x_TE)
        main.wait_stream(self._aside)
        return out_TE.add_(shared_TE)

    def _shared_part(self, shared: RunningMLP, x_TE: Tensor, step: Step) -> Tensor:
        """What every token passes through, [T, E]."""
        shared_TE = shared.run(x_TE, step)
        if self._shared_gate is not None:
            shared_TE *= self._shared_gate(x_TE).sigmoid()
        return shared_TE

    def _routed(self, x_TE: Tensor) -> Tensor:
        """The experts' sum, [T, E]."""
        spec = self._spec
        weights_TK, ids_TK = self._router.choose(x_TE)
        if self._setup.shard.size > 1:
            ids_TK = self._own(ids_TK)
        inner_TE = x_TE if self._experts_norm is None else normed(self._experts_norm, x_TE)
        inner_TL = inner_TE if self._latent_in is None else self._latent_in(inner_TE)
        out_TL = torch.empty_like(inner_TL)
        ops.moe(
            out_TL,
            inner_TL,
            weights_TK,
            ids_TK,
            self._input,
            self._down,
            up_bias=self._input_bias,
            down_bias=self._down_bias,
            activation=spec.activation,
            gated=spec.gated,
            limit=spec.limit,
            alpha=spec.alpha,
            weight_input=spec.weight_input,
            zero_experts=spec.zero_experts,
            up_scale=self._input_scale,
            down_scale=self._down_scale,
        )
        out_TL = self._setup.sum_ranks(out_TL)
        out_TE = out_TL if self._latent_out is None else self._latent_out(out_TL)
        if spec.scale != 1.0:
            out_TE *= spec.scale
        if self._sum_bias is not None:
            out_TE += self._sum_bias
        return out_TE

    def _own(self, ids_TK: Tensor) -> Tensor:
        """Ids among this rank's experts, -1 for others; the first rank has those that return their input."""
        own_TK = ids_TK - self._first_expert
        own_TK = own_TK.masked_fill((own_TK < 0) | (own_TK >= self._num_local), -1)
        if self._spec.zero_experts and self._setup.shard.rank == 0:
            past_TK = ids_TK - self._spec.num_experts
            own_TK = torch.where(past_TK < 0, own_TK, past_TK + self._num_local)
        return own_TK


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all layers: a stream has memory of its own in cuBLAS. No other work may use it."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class _RouterOp:
    """The runtime of `Router`."""

    __slots__ = ("_bias", "_correction", "_expert_scales", "_norm", "_spec", "_weight")

    def __init__(self, spec: Router, weights: Weights) -> None:
        self._spec = spec
        self._weight, self._bias = weights["router.weight"], weights.get("router.bias")
        self._correction = weights.get("router.correction")
        self._norm = None if spec.norm is None else spec.norm.build(weights, "router.norm")
        self._expert_scales = weights.get("router.expert_scales")

    def choose(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 [T, K] and ids int64 [T, K]."""
        spec, bias = self._spec, self._bias
        if self._norm is not None:
            x_TE = normed(self._norm, x_TE)
        if spec.input_scale != 1.0:
            x_TE = x_TE * spec.input_scale
        if spec.in_float32:
            bias = None if bias is None else bias.float()
            logits_TN = ops.linear(x_TE.float(), self._weight.float(), bias)
        else:
            logits_TN = ops.linear(x_TE, self._weight, bias)
        if spec.soft_cap is not None:
            logits_TN = torch.tanh(logits_TN.float() / spec.soft_cap) * spec.soft_cap
        weights_TK, ids_TK = ops.route_experts(
            logits_TN,
            top_k=spec.top_k,
            scoring=spec.scoring,
            renormalize=spec.renormalize,
            bias=self._correction,
            groups=spec.groups,
            top_groups=spec.top_groups,
            group_score=spec.group_score,
            scale=spec.scale,
            renormalize_eps=spec.renormalize_eps,
            jitter_eps=spec.jitter_eps,
        )
        if self._expert_scales is not None:
            weights_TK = weights_TK * self._expert_scales[ids_TK]
        return weights_TK, ids_TK
