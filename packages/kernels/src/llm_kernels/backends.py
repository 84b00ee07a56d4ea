"""How the kinds of back end are declared: torch, C++ on the CPU, Triton and CUDA on the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import torch

from llm_kernels.errors import BackendUnavailable
from llm_kernels.registry import FLOATS, PLAIN, Backend

F = TypeVar("F", bound=Callable[..., object])

# The interpreter multiplies the bits of bfloat16 in tl.dot (seen with triton 3.7.1).
_INTERPRETED_DTYPES = frozenset({torch.float32, torch.float16})
_CPP_DTYPES = frozenset({torch.float32, torch.bfloat16})
_CUDA_DTYPES = frozenset({torch.bfloat16})


def torch_backend(function: F, *, is_batch_invariant: bool = False) -> Backend[F]:
    """The reference: takes everything, priority 0."""
    return Backend(name="torch", load=lambda: function, features=None, is_batch_invariant=is_batch_invariant)


def by_row_backend(name: str) -> Backend[Callable[..., Any]]:
    """A function in `llm_kernels.cpu.by_row`: the reference, row by row, on the CPU."""
    return Backend(
        name="by_row",
        load=lambda: _load("llm_kernels.cpu.by_row", name),
        devices=frozenset({"cpu"}),
        priority=1,
        features=None,
        is_batch_invariant=True,
        is_for_invariance=True,
    )


def sdpa_backend(module: str, name: str, features: frozenset[str] = PLAIN) -> Backend[Callable[..., Any]]:
    """A function in `llm_kernels.sdpa.<module>`: torch's fused attention, on any device."""
    return Backend(
        name="sdpa",
        load=lambda: _load(f"llm_kernels.sdpa.{module}", name),
        dtypes=FLOATS,
        priority=5,
        features=features,
    )


def cpp_backend(
    module: str,
    name: str,
    accepts: Callable[[torch.dtype, int], bool] | None = None,
    features: frozenset[str] = PLAIN,
    *,
    is_batch_invariant: bool = False,
    is_for_invariance: bool = False,
) -> Backend[Callable[..., Any]]:
    """A wrapper in `llm_kernels.cpu.<module>`: float32 and bfloat16 on the CPU."""
    return Backend(
        name="cpp_invariant" if is_for_invariance else "cpp",
        load=lambda: _load(f"llm_kernels.cpu.{module}", name),
        devices=frozenset({"cpu"}),
        dtypes=_CPP_DTYPES,
        priority=20,
        accepts=accepts,
        features=features,
        is_batch_invariant=is_batch_invariant or is_for_invariance,
        is_for_invariance=is_for_invariance,
    )


def cuda_backend(
    module: str,
    name: str,
    accepts: Callable[[torch.dtype, int], bool] | None = None,
    features: frozenset[str] = PLAIN,
    dtypes: frozenset[torch.dtype] = _CUDA_DTYPES,
    *,
    is_for_invariance: bool = False,
) -> Backend[Callable[..., Any]]:
    """A launcher in `llm_kernels.cuda.<module>`: compiled for Hopper and for nothing else."""
    return Backend(
        name="cuda_invariant" if is_for_invariance else "cuda",
        load=lambda: _load_cuda(f"llm_kernels.cuda.{module}", name),
        devices=frozenset({"cuda"}),
        dtypes=dtypes,
        priority=30,
        accepts=accepts,
        features=features,
        is_optional=True,
        is_batch_invariant=is_for_invariance,
        is_for_invariance=is_for_invariance,
    )


def triton_backends(
    module: str,
    name: str,
    accepts: Callable[[torch.dtype, int], bool] | None = None,
    features: frozenset[str] = PLAIN,
    *,
    is_batch_invariant: bool = False,
    is_for_invariance: bool = False,
) -> list[Backend[Callable[..., Any]]]:
    """A launcher in `llm_kernels.triton.<module>`: compiled on a GPU; interpreted on a CPU, if named."""
    path = f"llm_kernels.triton.{module}"
    suffix = "_invariant" if is_for_invariance else ""
    is_batch_invariant |= is_for_invariance
    compiled: Backend[Callable[..., Any]] = Backend(
        name="triton" + suffix,
        load=lambda: _load_triton(path, name),
        devices=frozenset({"cuda"}),
        dtypes=FLOATS,
        priority=10,
        accepts=accepts,
        features=features,
        is_batch_invariant=is_batch_invariant,
        is_for_invariance=is_for_invariance,
    )
    interpreted: Backend[Callable[..., Any]] = Backend(
        name=f"triton{suffix}_interpreter",
        load=lambda: _load_interpreted(path, name),
        devices=frozenset({"cpu"}),
        dtypes=_INTERPRETED_DTYPES,
        priority=-1,
        accepts=accepts,
        features=features,
        is_batch_invariant=is_batch_invariant,
        is_for_invariance=is_for_invariance,
    )
    return [compiled, interpreted]


def _load(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _load_cuda(module: str, name: str) -> Callable[..., Any]:
    if not torch.cuda.is_available():
        raise BackendUnavailable("torch sees no CUDA device")
    return _load(module, name)


def _load_triton(module: str, name: str) -> Callable[..., Any]:
    if not torch.cuda.is_available():
        raise BackendUnavailable("torch sees no CUDA device")
    return _import_triton(module, name)


def _load_interpreted(module: str, name: str) -> Callable[..., Any]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise BackendUnavailable("set TRITON_INTERPRET=1 before triton is imported")
    return _import_triton(module, name)


def _import_triton(module: str, name: str) -> Callable[..., Any]:
    try:
        import_module("triton")
    except ImportError as error:
        raise BackendUnavailable(f"triton cannot be imported: {error}") from error
    return _load(module, name)
