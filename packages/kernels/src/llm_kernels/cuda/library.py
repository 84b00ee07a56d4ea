"""Finding and loading the CUDA library; knows nothing about any op."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from llm_kernels.cpu.library import invalid
from llm_kernels.errors import BackendUnavailable

__all__ = ["CAPABILITY", "invalid", "native"]

CAPABILITY = (9, 0)
"""What the kernels are compiled for: sm_90a, which runs on no other capability."""
_DISTRIBUTION = "llm-stack-kernels"
_LIBRARY = "llm_kernels_cuda"


def native(name: str) -> Callable[..., Any]:
    """The exported function `name` of the CUDA library. Calls run on torch's current stream.

    Raises:
        BackendUnavailable: No Hopper GPU, or the library is not built or lacks the function.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailable("torch sees no CUDA device")
    if (found := torch.cuda.get_device_capability()) != CAPABILITY:
        raise BackendUnavailable(f"compiled for compute capability 9.0, the device has {found[0]}.{found[1]}")
    try:
        return _library().get_function(name)  # type: ignore[no-any-return]
    except AttributeError as error:
        raise BackendUnavailable(f"the CUDA library has no function {name}; rebuild it") from error


@cache
def _library() -> Any:  # noqa: ANN401 - tvm_ffi has no types
    try:
        from tvm_ffi.libinfo import load_lib_module
    except ImportError as error:
        raise BackendUnavailable(f"apache-tvm-ffi cannot be imported: {error}") from error
    try:
        return load_lib_module(_DISTRIBUTION, _LIBRARY)
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].split("; searched")[0]
        raise BackendUnavailable(f"the CUDA library cannot be loaded: {reason}") from error
