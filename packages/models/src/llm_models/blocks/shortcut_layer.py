"""Owns a layer in which one block runs beside everything that follows it and is added at the end."""

from collections.abc import Iterator
from dataclasses import dataclass

from llm_models.blocks.layer import Block, BlockSpec, Branch, RunningBranch, RunningLayer, Stream
from llm_models.blocks.norm import Norm, NormOp
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Shard, below


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortcutLayer:
    """`before`, then `near` and `far` on the same normed input, then `after`; only then is `far` added.

    The norm is called as one of `near`'s (`<its name>.norm`).

    Attributes:
        before: Branches before the fork.
        norm: Of the fork's input.
        near: What is added at once.
        far: What is added at the layer's end.
        after: Branches between the two.
    """

    before: tuple[Branch, ...]
    norm: Norm
    near: BlockSpec
    far: BlockSpec
    after: tuple[Branch, ...]

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the branches, the norm and both blocks."""
        for branch in (*self.before, *self.after):
            yield from branch.parameters(width, shard)
        yield from self.norm.parameters(f"{self.near.name}.norm", width)
        for block in (self.near, self.far):
            yield from below(f"{block.name}.", block.parameters(width, shard))

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the blocks, in the order in which they are built."""
        before = [block for branch in self.before for block in branch.blocks]
        after = [block for branch in self.after for block in branch.blocks]
        blocks = (*before, self.near, self.far, *after)
        return tuple(cache for block in blocks for cache in block.caches(shard))

    def build(self, weights: Weights, setup: Setup) -> RunningLayer:
        """The runtime."""
        before = tuple(branch.build(weights, setup) for branch in self.before)
        near = self.near.build(weights.below(f"{self.near.name}."), setup)
        far = self.far.build(weights.below(f"{self.far.name}."), setup)
        after = tuple(branch.build(weights, setup) for branch in self.after)
        norm = self.norm.build(weights, f"{self.near.name}.norm")
        return _RunningShortcutLayer(before, norm, near, far, after)


class _RunningShortcutLayer:
    __slots__ = ("_after", "_before", "_far", "_near", "_norm")

    def __init__(
        self,
        before: tuple[RunningBranch, ...],
        norm: NormOp,
        near: Block,
        far: Block,
        after: tuple[RunningBranch, ...],
    ) -> None:
        self._before, self._after = before, after
        self._norm, self._near, self._far = norm, near, far

    def run(self, stream: Stream, step: Step) -> None:
        for branch in self._before:
            branch.run(stream, step)
        x_TE = stream.normed(self._norm)
        far_TE = self._far.run(x_TE, step)
        stream.add(self._near.run(x_TE, step))
        for branch in self._after:
            branch.run(stream, step)
        stream.add(far_TE)
