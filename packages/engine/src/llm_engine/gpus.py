"""Owns the table of GPUs that capacity can be predicted for; knows nothing of models."""

import difflib
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from llm_engine.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        name: As it is asked for.
        title: For people.
        memory_bytes: What the driver reports as its memory.
        read_bytes_per_s: Rate of reading memory.
        flops_per_s: Dense bf16 operations a second; a multiply-add is two.
        fp8_flops_per_s: The same of e4m3 weights; the rate of bf16 where the GPU has no such products.
        is_measured: Whether the rates were measured here; else they are the maker's.
    """

    name: str
    title: str
    memory_bytes: int
    read_bytes_per_s: float
    flops_per_s: float
    fp8_flops_per_s: float
    is_measured: bool


def known_gpus() -> dict[str, Gpu]:
    """All GPUs of the table, by name."""
    table = tomllib.loads((files("llm_engine") / "gpus.toml").read_text(encoding="utf-8"))
    return {
        name: Gpu(
            name=name,
            title=row["title"],
            memory_bytes=row["memory_mib"] * 2**20,
            read_bytes_per_s=row["read_gb_s"] * 1e9,
            flops_per_s=row["bf16_tflops"] * 1e12,
            fp8_flops_per_s=row.get("fp8_tflops", row["bf16_tflops"]) * 1e12,
            is_measured=row.get("measured", False),
        )
        for name, row in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """The GPU of a name, whatever its case.

    Raises:
        InvalidOption: There is none of that name.
    """
    known = known_gpus()
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidOption("gpu", f"must be one of {', '.join(known)}, got {name!r}{hint}")
    return known[name.lower()]
