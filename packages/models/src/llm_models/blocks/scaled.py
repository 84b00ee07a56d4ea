"""Owns constant factors around a block; knows nothing about what the block computes."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from llm_models.blocks.layer import Block, BlockSpec
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A block with factors on its input and output, for parallel branches whose factors differ."""

    block: BlockSpec
    input_scale: float = 1.0
    output_scale: float = 1.0

    @property
    def name(self) -> str:
        """That of the block."""
        return self.block.name

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the block."""
        return self.block.parameters(width, shard)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the block."""
        return self.block.caches(shard)

    def build(self, weights: Weights, setup: Setup) -> Block:
        """The runtime."""
        return _RunningScaled(self, self.block.build(weights, setup))


class _RunningScaled:
    __slots__ = ("_block", "_input_scale", "_output_scale")

    def __init__(self, spec: Scaled, block: Block) -> None:
        self._block = block
        self._input_scale, self._output_scale = spec.input_scale, spec.output_scale

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        if self._input_scale != 1.0:
            x_TE = x_TE * self._input_scale
        out_TE = self._block.run(x_TE, step)
        if self._output_scale != 1.0:
            out_TE *= self._output_scale
        return out_TE
