"""What the launches of attention in Triton share: tiles, precision, a call's arguments; no device code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from llm_kernels.triton.launch_sizes import power_of_2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes of one launch: rows (query tokens times grouped heads), keys, and how it is pipelined."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded(size: int) -> int:
    """The extent of a tile that holds `size` columns; the least a matrix product takes is 16."""
    return max(16, power_of_2(size))


def precision(dtype: torch.dtype) -> str:
    """How matrix products are taken: TF32 keeps ten bits of a float32. Half types do not heed it."""
    return "ieee" if dtype == torch.float32 else "tf32"


@lru_cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; a few for the interpreter, so that splits are exercised."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of one call, and the forms the kernels take them in."""

    out: torch.Tensor
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    causal: bool = True
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.query.shape[1] // self.keys.shape[2]

    @property
    def widest(self) -> int:
        """The larger of the sizes of a key and a value."""
        return max(self.query.shape[2], self.values.shape[3])

    def per_head(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sinks, ALiBi slopes and the scales of keys and values; the stand-ins for None are not read."""
        options = (self.sinks, self.alibi_slopes, self.key_scale, self.value_scale)
        first, second, third, fourth = (self.out if option is None else option for option in options)
        return first, second, third, fourth

    def strides(self) -> tuple[int, ...]:
        """Strides in the order of the kernels' signatures, but that of the block tables."""
        return (
            *self.out.stride()[:2],
            *self.query.stride()[:2],
            *self.keys.stride()[:3],
            *self.values.stride()[:3],
        )

    def scores(self) -> tuple[float, float, int, int]:
        """Scale, soft cap, window and chunk; the stand-ins for None are not read."""
        return self.scale, float(self.soft_cap or 1.0), self.sliding_window or 0, self.chunk or 0

    def constants(self, tile: Tile) -> dict[str, Any]:
        """The compile-time arguments the kernels share."""
        head_size, value_size = self.query.shape[2], self.values.shape[3]
        return {
            "GROUP": self.group,
            "D": head_size,
            "D_PAD": padded(head_size),
            "V": value_size,
            "V_PAD": padded(value_size),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_SIZE": self.keys.shape[1],
            "HAS_WINDOW": self.sliding_window is not None,
            "HAS_CHUNK": self.chunk is not None,
            "HAS_SOFT_CAP": self.soft_cap is not None,
            "HAS_SINKS": self.sinks is not None,
            "HAS_ALIBI": self.alibi_slopes is not None,
            "HAS_CACHE_SCALES": self.key_scale is not None,
            "PRECISION": precision(self.query.dtype),
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }
