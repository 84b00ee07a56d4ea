"""One file an architecture family, and what such a file defines: names, and the way from config to spec."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec, EncoderDecoderSpec

AnySpec: TypeAlias = DecoderSpec | PooledSpec | EncoderDecoderSpec
S_co = TypeVar("S_co", bound=AnySpec, covariant=True)


@dataclass(frozen=True, slots=True)
class Architecture(Generic[S_co]):
    """A named way to turn a config into a spec. Calling it runs `build`."""

    names: tuple[str, ...]
    build: Callable[[Mapping[str, Any]], S_co]

    def __call__(self, config: Mapping[str, Any]) -> S_co:
        """Builds the spec of `config` (Hugging Face keys)."""
        return self.build(config)


def architecture(*names: str) -> Callable[[Callable[[Mapping[str, Any]], S_co]], Architecture[S_co]]:
    """Marks a function as the spec builder of the architectures that configs call `names`."""
    return lambda build: Architecture(names, build)
