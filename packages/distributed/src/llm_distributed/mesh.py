"""Named axes over ranks and the collectives along them; knows nothing of layers or processes.

Ranks are laid out in row-major order over (dp, pp, cp, tp, ep), the last axis fastest. Layers ask for an
axis, never for a rank. An axis of size 1 costs nothing: its collectives return their input.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from llm_distributed.errors import MeshError

AXES = ("dp", "pp", "cp", "tp", "ep")


class DeviceMesh:
    """A rank's view of the mesh.

    Args:
        axes: Axis name to size; a missing axis has size 1.
        rank: This rank.
        groups: For each axis larger than 1, the process group of this rank along it. `connect` makes them.

    Raises:
        MeshError: An unknown axis, a size below 1, a rank outside, or a group missing.
    """

    def __init__(
        self,
        axes: Mapping[str, int] | None = None,
        rank: int = 0,
        groups: Mapping[str, dist.ProcessGroup] | None = None,
    ) -> None:
        self.axes = _checked(axes or {})
        self.world_size = prod(self.axes.values())
        if not 0 <= rank < self.world_size:
            raise MeshError("rank", f"must be from 0 to {self.world_size - 1}, got {rank}")
        self.global_rank = rank
        self._coordinates = coordinates(self.axes, rank)
        self._groups = dict(groups or {})
        for axis, size in self.axes.items():
            if size > 1 and axis not in self._groups:
                raise MeshError("groups", f"axis {axis} of size {size} has no process group")

    def size(self, axis: str) -> int:
        """Number of ranks along the axis."""
        return self.axes[_known(axis)]

    def rank(self, axis: str) -> int:
        """This rank's place along the axis."""
        return self._coordinates[_known(axis)]

    def all_reduce(self, x: Tensor, axis: str) -> Tensor:
        """Sums `x` over the axis, in place; returns `x`."""
        if self.size(axis) > 1:
            dist.all_reduce(x, group=self._groups[axis])
        return x

    def all_gather(self, x: Tensor, axis: str, dim: int = -1) -> Tensor:
        """Joins the equally shaped `x` of all ranks of the axis along `dim`, in order of rank."""
        size = self.size(axis)
        if size == 1:
            return x
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
        dist.all_gather(parts, x.contiguous(), group=self._groups[axis])
        return torch.cat(parts, dim=dim)

    def broadcast(self, x: Tensor, axis: str, source: int) -> Tensor:
        """Overwrites `x` with that of the rank at place `source` of the axis, in place; returns `x`."""
        size = self.size(axis)
        if not 0 <= source < size:
            raise MeshError("source", f"must be from 0 to {size - 1}, got {source}")
        if size > 1:
            dist.broadcast(x, group=self._groups[axis], group_src=source)
        return x

    def barrier(self, axis: str) -> None:
        """Waits until all ranks of the axis are here."""
        if self.size(axis) > 1:
            dist.barrier(group=self._groups[axis])


def coordinates(axes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Place of a rank along each axis."""
    place = {}
    for axis in reversed(AXES):
        rank, place[axis] = divmod(rank, axes[axis])
    return {axis: place[axis] for axis in AXES}


def rank_groups(axes: Mapping[str, int], axis: str) -> list[list[int]]:
    """The ranks of every group along `axis`; each rank is in exactly one."""
    others = [name for name in AXES if name != axis]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(axes.values())):
        place = coordinates(axes, rank)
        found.setdefault(tuple(place[name] for name in others), []).append(rank)
    return [found[key] for key in product(*(range(axes[name]) for name in others))]


def connect(
    axes: Mapping[str, int], rank: int, store: Store, *, backend: str, timeout_s: float = 600.0
) -> DeviceMesh:
    """Joins the process group of this process and makes a group along every axis.

    Args:
        axes: Axis name to size; a missing axis has size 1.
        rank: This process' rank.
        store: Where the ranks meet.
        backend: "gloo" for CPU tensors, "nccl" for CUDA tensors.
        timeout_s: After it a collective that a rank never joined fails.

    Raises:
        MeshError: An unknown axis, a size below 1, or a rank outside.
    """
    sizes = _checked(axes)
    if prod(sizes.values()) == 1:
        return DeviceMesh(sizes, rank)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=prod(sizes.values()),
        timeout=timedelta(seconds=timeout_s),
    )
    own = {}
    for axis in AXES:
        if sizes[axis] == 1:
            continue
        # Every rank makes every group, in the same order: new_group is itself a collective.
        for ranks in rank_groups(sizes, axis):
            group = dist.new_group(ranks)
            if rank in ranks:
                own[axis] = group
    return DeviceMesh(sizes, rank, own)


def _checked(axes: Mapping[str, int]) -> dict[str, int]:
    for axis, size in axes.items():
        _known(axis)
        if size < 1:
            raise MeshError(axis, f"must be at least 1, got {size}")
    return {axis: axes.get(axis, 1) for axis in AXES}


def _known(axis: str) -> str:
    if axis not in AXES:
        raise MeshError("axis", f"{axis!r} is none of {', '.join(AXES)}")
    return axis
