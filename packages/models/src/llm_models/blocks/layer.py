"""Owns how blocks are put together into a layer: norms, residual connections, parallel branches.

Knows nothing about what a block computes. The residual stream is kept with the last branch's output still to
be added, so that the sum is fused with the norm that comes next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from llm_models.blocks.linear import Inputs
from llm_models.blocks.narrow import Narrow
from llm_models.blocks.norm import Norm, NormOp, RMSNormOp, normed
from llm_models.blocks.step import Setup, Step, Weights
from llm_models.caches import CacheSpec
from llm_models.parameters import Parameter, Shard, below, tensor


class Block(Protocol):
    """A mixer or feed-forward, ready to run."""

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        """Computes the block's output, a new tensor [T, E]; `x_TE` is left as it is."""
        ...


@runtime_checkable
class NarrowBlock(Protocol):
    """A block that also reads its input as the norm before it quantized it."""

    def room(self, tokens: int, dtype: torch.dtype) -> Narrow | None:
        """Where to write the input of so many tokens quantized; None: it reads the model's number format."""
        ...

    def run(self, x_TE: Inputs, step: Step) -> Tensor:
        """As `Block.run`."""
        ...


class BlockSpec(Protocol):
    """A kind of mixer or feed-forward, as data."""

    @property
    def name(self) -> str:
        """The first part of its canonical names inside the layer."""
        ...

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Its parameters on this rank, below its name, for hidden states of `width`."""
        ...

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """What it keeps between steps, on this rank."""
        ...

    def build(self, weights: Weights, setup: Setup) -> Block:
        """The runtime, which takes one `setup.next_cache()` for each of `caches`."""
        ...


class LayerSpec(Protocol):
    """A layer, as data. `Layer` is the usual one."""

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Its parameters on this rank, named inside the layer."""
        ...

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """What its blocks keep between steps, in the order in which they are built."""
        ...

    def build(self, weights: Weights, setup: Setup) -> "RunningLayer":
        """The runtime."""
        ...


class RunningLayer(Protocol):
    """A layer, ready to run."""

    def run(self, stream: "Stream", step: Step) -> None:
        """Reads the residual stream and adds to it."""
        ...


class Stream:
    """The residual stream: a sum, and what is still to be added to it."""

    __slots__ = ("_pending", "_sum")

    def __init__(self, first_TE: Tensor) -> None:
        self._sum = first_TE
        self._pending: Tensor | None = None

    def normed(self, norm: NormOp) -> Tensor:
        """The normed stream, in a new tensor."""
        x, self._pending = self._pending, None
        if x is None:
            x = torch.empty_like(self._sum)
            norm.apply(x, self._sum)
        else:
            norm.add(x, self._sum)
        return x

    @property
    def sum(self) -> Tensor:
        """What of the stream is added up so far: its shape and number format are the stream's."""
        return self._sum

    def normed_into(self, norm: RMSNormOp, room: Narrow) -> None:
        """Writes the normed stream quantized."""
        x, self._pending = self._pending, None
        norm.narrow(room, x, self._sum)

    def whole(self) -> Tensor:
        """The stream itself; not to be written to."""
        if self._pending is not None:
            self._sum += self._pending
            self._pending = None
        return self._sum

    def add(self, x_TE: Tensor) -> None:
        """Adds a tensor that nobody else uses."""
        if self._pending is not None:
            self._sum += self._pending
        self._pending = x_TE

    def replace(self, x_TE: Tensor) -> None:
        """Puts another tensor in the stream's place."""
        self._sum, self._pending = x_TE, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Blocks around which there is one residual connection: `x + scale * post(sum of blocks(pre(x)))`.

    Several blocks run side by side on the same input (parallel attention and feed-forward).

    Attributes:
        blocks: What is computed.
        pre: Norm of the input; None: the stream as it is.
        post: Norm of the blocks' sum, before it is added.
        after: Norm of the stream once it is added (post-norm models).
        scale: Factor of what is added.
        residual_scale: Factor of the stream before it is added to.
        residual_from_norm: What is added to is the normed input, not the stream.
        residual_weight: There is a factor per channel on the stream before it is added to.
        name: First part of the canonical names of the norms; None: that of the first block.
    """

    blocks: tuple[BlockSpec, ...]
    pre: Norm | None = None
    post: Norm | None = None
    after: Norm | None = None
    scale: float = 1.0
    residual_scale: float = 1.0
    residual_from_norm: bool = False
    residual_weight: bool = False
    name: str | None = None

    @property
    def prefix(self) -> str:
        """First part of the canonical names of its norms."""
        return self.name or self.blocks[0].name

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the norms and the blocks."""
        for leaf, norm in (("norm", self.pre), ("post_norm", self.post), ("after_norm", self.after)):
            if norm is not None:
                yield from norm.parameters(f"{self.prefix}.{leaf}", width)
        if self.residual_weight:
            yield tensor(f"{self.prefix}.residual.weight", (width,), kind="norm")
        for block in self.blocks:
            yield from below(f"{block.name}.", block.parameters(width, shard))

    def build(self, weights: Weights, setup: Setup) -> "RunningBranch":
        """The runtime."""
        inside = weights.below(f"{self.prefix}.")

        def norm(leaf: str, spec: Norm | None) -> NormOp | None:
            return None if spec is None else spec.build(inside, leaf)

        return RunningBranch(
            self,
            tuple(block.build(weights.below(f"{block.name}."), setup) for block in self.blocks),
            norm("norm", self.pre),
            norm("post_norm", self.post),
            norm("after_norm", self.after),
            inside.get("residual.weight"),
        )


class RunningBranch:
    """The runtime of `Branch`."""

    __slots__ = (
        "_after",
        "_first",
        "_from_norm",
        "_narrow",
        "_others",
        "_post",
        "_pre",
        "_residual_factor",
        "_scale",
    )

    def __init__(
        self,
        spec: Branch,
        blocks: tuple[Block, ...],
        pre: NormOp | None,
        post: NormOp | None,
        after: NormOp | None,
        residual_weight: Tensor | None,
    ) -> None:
        self._first, self._others = blocks[0], blocks[1:]
        self._pre, self._post, self._after = pre, post, after
        self._scale, self._from_norm = spec.scale, spec.residual_from_norm
        # Set where nothing but the block reads what the norm writes.
        self._narrow: tuple[NarrowBlock, RMSNormOp] | None = None
        if len(blocks) == 1 and isinstance(pre, RMSNormOp) and not spec.residual_from_norm:
            self._narrow = (blocks[0], pre) if isinstance(blocks[0], NarrowBlock) else None
        self._residual_factor: Tensor | float | None = residual_weight
        if residual_weight is None and spec.residual_scale != 1.0:
            self._residual_factor = spec.residual_scale

    def run(self, stream: Stream, step: Step) -> None:
        """Runs the blocks and adds their output to the stream."""
        narrow_TE = self._run_narrow(stream, step)
        if narrow_TE is not None:
            out_TE = narrow_TE
        else:
            x_TE = stream.whole() if self._pre is None else stream.normed(self._pre)
            out_TE = self._first.run(x_TE, step)
            for block in self._others:
                out_TE += block.run(x_TE, step)
        if self._post is not None:
            self._post.apply(out_TE, out_TE)
        if self._scale != 1.0:
            out_TE *= self._scale
        if self._from_norm:
            stream.replace(x_TE)
        if self._residual_factor is not None:
            stream.replace(stream.whole() * self._residual_factor)
        stream.add(out_TE)
        if self._after is not None:
            stream.replace(stream.normed(self._after))

    def _run_narrow(self, stream: Stream, step: Step) -> Tensor | None:
        """The block's output from inputs that its norm quantized; None where it reads no such."""
        if self._narrow is None:
            return None
        block, norm = self._narrow
        room = block.room(stream.sum.shape[0], stream.sum.dtype)
        if room is None:
            return None
        stream.normed_into(norm, room)
        return block.run(room, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normed:
    """A block with norms of its own on its input and output, for parallel branches whose norms differ."""

    block: BlockSpec
    norm: Norm | None = None
    post: Norm | None = None

    @property
    def name(self) -> str:
        """That of the block."""
        return self.block.name

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the norms (`norm`, `post_norm`) and the block."""
        for leaf, norm in (("norm", self.norm), ("post_norm", self.post)):
            if norm is not None:
                yield from norm.parameters(leaf, width)
        yield from self.block.parameters(width, shard)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the block."""
        return self.block.caches(shard)

    def build(self, weights: Weights, setup: Setup) -> Block:
        """The runtime."""
        norm = None if self.norm is None else self.norm.build(weights, "norm")
        post = None if self.post is None else self.post.build(weights, "post_norm")
        return _NormedBlock(self.block.build(weights, setup), norm, post)


class _NormedBlock:
    __slots__ = ("_block", "_norm", "_post")

    def __init__(self, block: Block, norm: NormOp | None, post: NormOp | None) -> None:
        self._block, self._norm, self._post = block, norm, post

    def run(self, x_TE: Tensor, step: Step) -> Tensor:
        out_TE = self._block.run(x_TE if self._norm is None else normed(self._norm, x_TE), step)
        if self._post is not None:
            self._post.apply(out_TE, out_TE)
        return out_TE


@dataclass(frozen=True, slots=True)
class Layer:
    """The usual layer: branches one after the other."""

    branches: tuple[Branch, ...]

    def parameters(self, width: int, shard: Shard) -> Iterator[Parameter]:
        """Those of the branches."""
        for branch in self.branches:
            yield from branch.parameters(width, shard)

    def caches(self, shard: Shard) -> tuple[CacheSpec, ...]:
        """Those of the branches' blocks."""
        blocks = [block for branch in self.branches for block in branch.blocks]
        return tuple(cache for block in blocks for cache in block.caches(shard))

    def build(self, weights: Weights, setup: Setup) -> RunningLayer:
        """The runtime."""
        return _RunningLayer(tuple(branch.build(weights, setup) for branch in self.branches))


class _RunningLayer:
    __slots__ = ("_branches",)

    def __init__(self, branches: tuple[RunningBranch, ...]) -> None:
        self._branches = branches

    def run(self, stream: Stream, step: Step) -> None:
        for branch in self._branches:
            branch.run(stream, step)


def pre_norm(mixer: BlockSpec, feed_forward: BlockSpec, norm: Norm) -> Layer:
    """The most common layer: a norm before each block."""
    return Layer((Branch(blocks=(mixer,), pre=norm), Branch(blocks=(feed_forward,), pre=norm)))
