"""Finds torch operations of a model whose results may depend on the batch; knows nothing of our own kernels.

torch's matrix products and sums choose their kernels by the number of rows. On a CPU its functions of single
numbers differ too: the ends of its vector loops, which move with the batch, are computed by other code.
What our ops do is theirs to answer for: kernels that torch does not see, or the references row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llm_kernels.errors import KernelError
from llm_kernels.invariance import is_row_by_row

_SUM_NAMES = """
mm addmm bmm baddbmm addbmm mv addmv dot vdot linear matmul einsum inner outer _scaled_mm _grouped_mm _int_mm
convolution _convolution conv1d conv2d conv_transpose1d sum nansum mean prod var std var_mean std_mean norm
linalg_vector_norm logsumexp _logcumsumexp cumsum cumprod _softmax _log_softmax softmax log_softmax
native_layer_norm native_group_norm _fused_rms_norm rms_norm index_add index_add_ scatter_add scatter_add_
scatter_reduce scaled_dot_product_attention _scaled_dot_product_flash_attention
_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
"""
_FUNCTION_NAMES = """
exp exp2 expm1 log log2 log10 log1p sigmoid tanh sin cos tan erf erfc erfinv silu gelu mish softplus elu
log_sigmoid_forward pow rsqrt logaddexp hardswish atan2 sinh cosh lgamma
"""
_SUMS = frozenset(_SUM_NAMES.split())
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())


class DependsOnBatch(KernelError):
    """A model computes something whose result may depend on the batch.

    Attributes:
        operation: torch's name of it.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"the model uses torch's {operation}, whose results may depend on the batch")
        self.operation = operation


class BatchInvarianceCheck(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """A `with` block in which such operations on floating-point tensors raise `DependsOnBatch`."""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator's overload
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Looks at an operation before it is run."""
        name = func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        floats = [x for x in tensors if x.is_floating_point()]
        plain = name.removesuffix("_") if name.removesuffix("_") in _FUNCTIONS else name
        if floats and not is_row_by_row():
            on_cpu = any(x.device.type == "cpu" for x in floats)
            if name in _SUMS or (on_cpu and plain in _FUNCTIONS):
                raise DependsOnBatch(name)
        return func(*args, **(kwargs or {}))
