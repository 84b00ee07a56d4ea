"""Owns the gated delta rule mixer (arXiv:2412.06464): data, parameters and runtime."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from llm_kernels import ops
from torch import Tensor

from llm_models.blocks.linear import Linear, SummedLinear
from llm_models.blocks.norm import Norm
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec, StateCacheSpec
from llm_models.errors import ConfigError
from llm_models.parameters import Parameter, Part, Rows, Shard, head_rows, linear, stacked_linear, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """Linear attention whose state forgets by a learned decay and corrects what it holds for a key.

    Canonical names: query, key, value, gate, beta, decay; gate_down and decay_down where these come from a
    few features; conv_query, conv_key, conv_value; step_bias, A_log, norm, output.

    Attributes:
        num_key_heads: Heads of queries and keys.
        num_value_heads: Heads of values; a multiple.
        key_size: Of a query or key head.
        value_size: Of a value head.
        conv_width: Tokens that the convolution over queries, keys and values sees.
        norm: Of each head's output, before the gate.
        beta_scale: Factor of beta after the sigmoid.
        channel_decay: Each key dimension forgets at a rate of its own, instead of each head; then there are
            as many key heads as value heads.
        decay_bound: Least log decay, approached by a sigmoid; None: a softplus without bound.
        gate_activation: Of the output's gate.
        gate_rank: Features that the gate is computed from; None: the hidden states.
        decay_rank: The same for the decay.
        name: First part of its canonical names.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    conv_width: int
    norm: Norm
    beta_scale: float = 1.0
    channel_decay: bool = False
    decay_bound: float | None = None
    gate_activation: Literal["silu", "sigmoid"] = "silu"
    gate_rank: int | None = None
    decay_rank: int | None = None
    name: str = "delta"

    def __post_init__(self) -> None:
        if self.channel_decay and self.num_key_heads != self.num_value_heads:
            reason = f"{self.num_key_heads} differs from {self.num_value_heads} value heads"
            raise ConfigError("linear_num_key_heads", reason)

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Everything is cut by heads."""
        rows = self._rows(shard)
        yield from stacked_linear("input", self._input_rows(shard), width)
        for name, rank in self._ranks.items():
            yield from linear(name, rows[name].total, rank, taken_rows=rows[name].span)
        mixed = {part: rows[part] for part in ("query", "key", "value")}
        taken = sum(part.taken for part in mixed.values())
        yield Parameter(
            name="conv.weight",
            shape=(taken, self.conv_width),
            kind="other",
            parts=tuple(
                Part(name=f"conv_{name}.weight", shape=(part.total, self.conv_width), rows=part.span)
                for name, part in mixed.items()
            ),
        )
        heads = rows["beta"].span
        decay = rows["decay"]
        yield tensor("step_bias", (decay.total,), dtype=torch.float32, rows=decay.span)
        yield tensor("A_log", (self.num_value_heads,), dtype=torch.float32, rows=heads)
        yield from self.norm.parameters("norm", self.value_size)
        inner = self.num_value_heads * self.value_size
        yield from linear("output", width, inner, taken_columns=rows["value"].span)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """The convolution's last inputs, and the state in float32."""
        rows = self._rows(shard)
        channels = sum(rows[part].taken for part in ("query", "key", "value"))
        state = (rows["beta"].taken, self.key_size, self.value_size)
        return (
            StateCacheSpec(
                state_shapes=((channels, self.conv_width - 1), state), state_dtypes=(None, torch.float32)
            ),
        )

    def build(self, weights: Weights, setup: Setup) -> "RunningDeltaRule":
        """The runtime."""
        return RunningDeltaRule(self, weights, setup)

    def sizes(self, shard: Shard) -> tuple[int, ...]:
        """Rows on this rank of query, key, value, gate, beta and decay, or of what the latter come from."""
        return tuple(rows.taken for rows in self._input_rows(shard).values())

    @property
    def _ranks(self) -> dict[str, int]:
        ranks = {"gate": self.gate_rank, "decay": self.decay_rank}
        return {name: rank for name, rank in ranks.items() if rank is not None}

    def _input_rows(self, shard: Shard) -> dict[str, Rows]:
        """What is computed from the hidden states; few features are whole on each rank."""
        ranks = self._ranks
        return {
            f"{name}_down" if name in ranks else name: Rows(ranks[name]) if name in ranks else rows
            for name, rows in self._rows(shard).items()
        }

    def _rows(self, shard: Shard) -> dict[str, Rows]:
        keys = shard.span(self.num_key_heads, "linear_num_key_heads")
        values = shard.span(self.num_value_heads, "linear_num_value_heads")
        key = head_rows(self.num_key_heads, keys, self.key_size)
        value = head_rows(self.num_value_heads, values, self.value_size)
        scalar = head_rows(self.num_value_heads, values, 1)
        decay = key if self.channel_decay else scalar
        return {"query": key, "key": key, "value": value, "gate": value, "beta": scalar, "decay": decay}


class RunningDeltaRule:
    """The runtime of `DeltaRule`."""

    __slots__ = (
        "_cache",
        "_conv_weight",
        "_decay",
        "_gate",
        "_gate_activation",
        "_input",
        "_negative_A",
        "_norm",
        "_output",
        "_sizes",
        "_spec",
        "_step_bias",
    )

    def __init__(self, spec: DeltaRule, weights: Weights, setup: Setup) -> None:
        self._spec, self._sizes = spec, spec.sizes(setup.shard)
        self._input = Linear(weights, "input")
        self._conv_weight = weights["conv.weight"]
        self._gate = None if spec.gate_rank is None else Linear(weights, "gate")
        self._decay = None if spec.decay_rank is None else Linear(weights, "decay")
        self._gate_activation = torch.sigmoid if spec.gate_activation == "sigmoid" else F.silu
        self._step_bias, self._negative_A = weights["step_bias"], -torch.exp(weights["A_log"])
        if spec.channel_decay:
            self._negative_A = self._negative_A.repeat_interleave(spec.key_size)
        self._norm = spec.norm.build(weights, "norm")
        self._output = SummedLinear(weights, "output", setup)
        self._cache = setup.next_cache()

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """[T, E] to a new tensor [T, E]."""
        spec, metadata, tokens = self._spec, step.metadata[self._cache], len(x_TE)
        conv_cache, state_cache = step.caches[self._cache]
        query_size, key_size, value_size, gate_size, beta_size, decay_size = self._sizes
        mixed_TC, gate, beta_TH, decay = self._input(x_TE).split_with_sizes(
            (query_size + key_size + value_size, gate_size, beta_size, decay_size), dim=1
        )
        conv_TC = torch.empty(mixed_TC.shape, dtype=x_TE.dtype, device=x_TE.device)
        ops.causal_conv1d(
            conv_TC,
            mixed_TC,
            self._conv_weight,
            None,
            conv_cache,
            metadata,
            block_size=metadata.block_size,
            activation="silu",
        )
        query, key, value = conv_TC.split_with_sizes((query_size, key_size, value_size), dim=1)
        value_THV = value.view(tokens, -1, spec.value_size)
        out_THV = torch.empty(value_THV.shape, dtype=x_TE.dtype, device=x_TE.device)
        beta_TH = beta_TH.sigmoid()
        ops.gated_delta_rule(
            out_THV,
            query.view(tokens, -1, spec.key_size),
            key.view(tokens, -1, spec.key_size),
            value_THV,
            self._log_decay(decay),
            beta_TH if spec.beta_scale == 1.0 else beta_TH * spec.beta_scale,
            state_cache,
            metadata,
            block_size=metadata.block_size,
            scale=spec.key_size**-0.5,
        )
        self._norm.apply(out_THV, out_THV)
        if self._gate is not None:
            gate = self._gate(gate)
        out_THV *= self._gate_activation(gate.view(out_THV.shape))
        return self._output(out_THV.flatten(1))

    def _log_decay(self, decay: Tensor) -> Tensor:
        """Log decays in float32, [T, H] or one a key dimension, [T, H, K]."""
        spec = self._spec
        if self._decay is not None:
            decay = self._decay(decay)
        step = decay.float() + self._step_bias
        if spec.decay_bound is None:
            log_decay = self._negative_A * F.softplus(step)
        else:
            log_decay = spec.decay_bound * torch.sigmoid(-self._negative_A * step)
        return log_decay.view(len(decay), -1, spec.key_size) if spec.channel_decay else log_decay
