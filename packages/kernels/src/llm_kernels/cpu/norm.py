"""RMS norms in C++ on the CPU: the wrapper of csrc/cpu/norm."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_rms_norm = native("rms_norm")
_fused_add_rms_norm = native("fused_add_rms_norm")


def rms_norm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """C++ back end of `ops.rms_norm`."""
    try:
        _rms_norm(out, x, weight, eps, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """C++ back end of `ops.fused_add_rms_norm`."""
    try:
        _fused_add_rms_norm(x, residual, weight, eps, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
