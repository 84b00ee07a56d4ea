"""Linear layers in C++ on the CPU: the wrappers of csrc/cpu/linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_kernels.cpu.library import invalid, native

_linear = native("linear")
_most_tokens = native("linear_most_tokens")
_invariant_linear = native("invariant_linear")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """C++ back end of `ops.linear`; rows too many for its kernels go to torch."""
    rows = x.reshape(-1, x.shape[-1])
    if not takes(rows, weight):
        return F.linear(x, weight, bias)
    out = x.new_empty((rows.shape[0], weight.shape[0]))
    try:
        _linear(out, rows, weight, bias, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
    return out if x.ndim == 2 else out.view(*x.shape[:-1], weight.shape[0])


def invariant_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Batch-invariant back end of `ops.linear`."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty((rows.shape[0], weight.shape[0]))
    try:
        _invariant_linear(out, rows, weight, bias, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
    return out.view(*x.shape[:-1], weight.shape[0])


def takes(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernels are the fastest way for so many rows, and can read the weight where it lies."""
    return len(rows) <= _most_tokens(rows.dtype == torch.bfloat16) and weight.stride(-1) == 1
