"""Linear layers in C++ on the CPU, batch-invariant: the wrapper of csrc/cpu/linear."""

from __future__ import annotations

import torch

from llm_kernels.cpu.library import invalid, native

_linear = native("invariant_linear")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Batch-invariant back end of `ops.linear`."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty((rows.shape[0], weight.shape[0]))
    try:
        _linear(out, rows, weight, bias, torch.get_num_threads())
    except ValueError as error:
        raise invalid(error) from None
    return out.view(*x.shape[:-1], weight.shape[0])
