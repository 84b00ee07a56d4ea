"""Back ends of an op and the choice between them; knows nothing about any particular op.

A back end states the devices and dtypes it takes, an optional predicate over (dtype, size), the features it
has beyond the plain op, and a priority. The highest priority that applies and loads wins. The choice is made
once per (device, dtype, size, features) and kept in a dict, so that a call costs one lookup. `size` is the
one extent kernels are specialised on: the head size for attention, KV write and rope, the last dimension
elsewhere. A feature is a word for an optional argument of the op that not every back end takes, as "sinks";
inside a `batch_invariant` block, "batch_invariant" is one of every call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from llm_kernels.errors import BackendUnavailable
from llm_kernels.invariance import BATCH_INVARIANT, is_batch_invariance_wanted

F = TypeVar("F", bound=Callable[..., object])

_log = logging.getLogger(__name__)

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
PLAIN: frozenset[str] = frozenset()
"""No feature: what every back end of an op can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Generic[F]):
    """One implementation of an op.

    Attributes:
        name: "torch", "cpp", "triton", ...
        load: Returns the callable; raises `BackendUnavailable` when it cannot run here. Called once.
        devices: Device types taken ("cpu", "cuda"); None takes all.
        dtypes: Dtypes of the leading tensor taken; None takes all.
        priority: Higher is preferred. The torch reference is 0; below 0 is used only when named.
        accepts: Further predicate over (dtype, size).
        features: What it does beyond the plain op; None takes all.
        is_optional: Whether most machines are expected to do without it: no warning then.
        is_batch_invariant: Whether a row's result does not depend on the other rows of a call.
        is_for_invariance: Whether it is used for nothing else unless named, being slower than others.
    """

    name: str
    load: Callable[[], F]
    devices: frozenset[str] | None = None
    dtypes: frozenset[torch.dtype] | None = None
    priority: int = 0
    accepts: Callable[[torch.dtype, int], bool] | None = None
    features: frozenset[str] | None = PLAIN
    is_optional: bool = False
    is_batch_invariant: bool = False
    is_for_invariance: bool = False

    def takes(
        self, device: torch.device, dtype: torch.dtype, size: int, features: frozenset[str] = PLAIN
    ) -> bool:
        """Whether the stated devices, dtypes, predicate and features cover the problem."""
        if BATCH_INVARIANT in features:
            if not self.is_batch_invariant:
                return False
            features = features - {BATCH_INVARIANT}
        return (
            (self.devices is None or device.type in self.devices)
            and (self.dtypes is None or dtype in self.dtypes)
            and (self.accepts is None or self.accepts(dtype, size))
            and (self.features is None or features <= self.features)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """One line of `describe_backends`: what is registered, and whether it can run on this machine."""

    op: str
    backend: str
    priority: int
    devices: tuple[str, ...] | None
    available: bool
    reason: str | None


class Op(Generic[F]):
    """A named op: its back ends, the choice made per problem, and the override.

    Args:
        name: Name of the op.
        backends: All back ends; one of them should take everything.
        default_size: The `size` assumed by `selected` when the caller names none.
    """

    def __init__(self, name: str, backends: Sequence[Backend[F]], *, default_size: int = 128) -> None:
        self.name = name
        self.backends = tuple(sorted(backends, key=lambda b: -b.priority))
        self.default_size = default_size
        self._loaded: dict[str, F | BackendUnavailable] = {}
        self._choice: dict[tuple[torch.device, torch.dtype, int, frozenset[str]], F] = {}
        self._forced: str | None = None

    def pick(
        self, device: torch.device, dtype: torch.dtype, size: int, features: frozenset[str] = PLAIN
    ) -> F:
        """The implementation for a problem; `features` are those the call makes use of.

        Raises:
            BackendUnavailable: The back end named through `use_backend` does not apply, or none does.
        """
        if is_batch_invariance_wanted():
            features = features | {BATCH_INVARIANT}
        try:
            return self._choice[device, dtype, size, features]
        except KeyError:
            implementation = self._load(self.choose(device, dtype, size, features))
            if isinstance(implementation, BackendUnavailable):
                raise implementation from None
            self._choice[device, dtype, size, features] = implementation
            return implementation

    def choose(
        self, device: torch.device, dtype: torch.dtype, size: int, features: frozenset[str] = PLAIN
    ) -> Backend[F]:
        """The back end `pick` would use. Logs one line for each better one that cannot load."""
        if is_batch_invariance_wanted():
            features = features | {BATCH_INVARIANT}
        problem = ", ".join([f"{self.name} on {device.type}", str(dtype), f"size {size}", *sorted(features)])
        if self._forced is not None:
            backend = self.backend(self._forced)
            if not backend.takes(device, dtype, size, features):
                raise BackendUnavailable(f"back end {backend.name} does not take {problem}")
            return backend
        for backend in self.backends:
            if backend.priority < 0 or not backend.takes(device, dtype, size, features):
                continue
            if backend.is_for_invariance and BATCH_INVARIANT not in features:
                continue
            implementation = self._load(backend)
            if not isinstance(implementation, BackendUnavailable):
                _log.debug("%s: back end %s", problem, backend.name)
                return backend
            level = logging.DEBUG if backend.is_optional else logging.WARNING
            _log.log(level, "%s: slower without back end %s: %s", problem, backend.name, implementation)
        raise BackendUnavailable(f"no back end for {problem}")

    def available(self) -> list[str]:
        """Names of the back ends that load on this machine, best first."""
        return [b.name for b in self.backends if not isinstance(self._load(b), BackendUnavailable)]

    def describe(self) -> list[BackendStatus]:
        """Every back end with its state, best first."""
        return [self._status(backend) for backend in self.backends]

    @contextmanager
    def force(self, name: str) -> Iterator[None]:
        """Use only the back end `name` inside the block; in every thread of the process."""
        self.backend(name)
        before = self._forced
        self._forced = name
        self._choice.clear()
        try:
            yield
        finally:
            self._forced = before
            self._choice.clear()

    def backend(self, name: str) -> Backend[F]:
        """The registered back end of that name; raises `BackendUnavailable` when there is none."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        names = ", ".join(b.name for b in self.backends)
        raise BackendUnavailable(f"op {self.name} has no back end {name!r}; it has: {names}")

    def _load(self, backend: Backend[F]) -> F | BackendUnavailable:
        if backend.name not in self._loaded:
            try:
                self._loaded[backend.name] = backend.load()
            except BackendUnavailable as error:
                self._loaded[backend.name] = error
        return self._loaded[backend.name]

    def _status(self, backend: Backend[F]) -> BackendStatus:
        state = self._load(backend)
        failed = isinstance(state, BackendUnavailable)
        return BackendStatus(
            op=self.name,
            backend=backend.name,
            priority=backend.priority,
            devices=None if backend.devices is None else tuple(sorted(backend.devices)),
            available=not failed,
            reason=str(state) if failed else None,
        )
