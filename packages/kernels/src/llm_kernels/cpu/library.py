"""Finding and loading the native library; knows nothing about any op."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch  # noqa: F401 - loaded first, so that the library shares torch's OpenMP threads

from llm_kernels.errors import BackendUnavailable, InvalidArgument

_DISTRIBUTION = "llm-stack-kernels"
_LIBRARY = "llm_kernels"


def native(name: str) -> Callable[..., Any]:
    """The exported function `name` of the native library.

    Raises:
        BackendUnavailable: The library is not built, cannot be loaded here, or lacks the function.
    """
    try:
        return _library().get_function(name)  # type: ignore[no-any-return]
    except AttributeError as error:
        raise BackendUnavailable(f"the native library has no function {name}; rebuild it") from error


def invalid(error: Exception) -> InvalidArgument:
    """The typed form of an error the native library raised; its text is "field: message"."""
    field, _, message = str(error).partition(": ")
    return InvalidArgument(field, message)


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
        raise BackendUnavailable(f"the native library cannot be loaded: {reason}") from error
