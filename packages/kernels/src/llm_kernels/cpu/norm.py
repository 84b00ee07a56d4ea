"""RMS norms in C++ on the CPU: the wrapper of csrc/cpu/elementwise."""

from __future__ import annotations

from functools import lru_cache

import torch

from llm_kernels.checks import check_norm
from llm_kernels.cpu.library import invalid, native

_rms_norm = native("rms_norm")
_fused_add_rms_norm = native("fused_add_rms_norm")


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """C++ back end of `ops.rms_norm`."""
    if weight is None:
        weight = _ones(x.shape[-1])
    elif weight.ndim == 2:
        check_norm("x", x, "out", out, weight)
        for head in range(weight.shape[0]):
            rms_norm(out[:, head], x[:, head], weight[head], eps)
        return
    try:
        _rms_norm(out, x, weight, eps, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> None:
    """C++ back end of `ops.fused_add_rms_norm`."""
    if weight is None:
        weight = _ones(x.shape[-1])
    elif weight.ndim == 2:
        check_norm("x", x, "residual", residual, weight)
        for head in range(weight.shape[0]):
            fused_add_rms_norm(x[:, head], residual[:, head], weight[head], eps)
        return
    try:
        _fused_add_rms_norm(x, residual, weight, eps, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None


@lru_cache(maxsize=64)
def _ones(size: int) -> torch.Tensor:
    """The weight of a norm without one: the C++ kernel always multiplies."""
    return torch.ones(size)
