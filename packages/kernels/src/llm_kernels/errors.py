"""The exceptions of llm_kernels; knows nothing about ops."""


class KernelError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidArgument(KernelError, ValueError):
    """An argument of an op has a wrong shape, dtype, device or value.

    Attributes:
        field: Name of the argument as it stands in the op's signature.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnknownOp(KernelError, KeyError):
    """No op of that name is registered."""

    def __str__(self) -> str:
        return str(self.args[0])


class BackendUnavailable(KernelError, RuntimeError):
    """A back end asked for by name does not exist, cannot load here, or does not take the problem."""
