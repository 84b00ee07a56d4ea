"""Owns noticing that a class counts positions by itself; knows nothing about models or steps.

Such a class would take every row of a packed step for one sequence. On a few tokens that need not show in its
output: some scale attention by position only from thousands of tokens on.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MODEL_CODE = ("transformers.models.", "transformers_modules.")


class PositionWatch(TorchFunctionMode):
    """Looks for `torch.arange` over as many numbers as a step has tokens, called from a class's own code.

    Attributes:
        found: Where one was called, as `module:line`, or None.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.found: str | None = None
        self._tokens = tokens

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func is torch.arange and isinstance(result, Tensor) and result.numel() == self._tokens:
            frame = sys._getframe(1)
            module = frame.f_globals.get("__name__", "")
            if module.startswith(_MODEL_CODE):
                self.found = f"{module}:{frame.f_lineno}"
        return result
