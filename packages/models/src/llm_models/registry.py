"""Owns the way from an architecture's name to its spec; knows nothing about weights or the runtime.

Packages add architectures with an entry point of the group `llm_stack.architectures`: its name is the
architecture's name, its value an object made with `@architecture`.
"""

import functools
import pkgutil
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llm_models import architectures
from llm_models.architectures import Architecture
from llm_models.config import architecture_name
from llm_models.errors import UnknownArchitecture
from llm_models.spec import DecoderSpec

API_VERSION = 1
GROUP = "llm_stack.architectures"


def known_architectures() -> tuple[str, ...]:
    """All names that `spec_for` knows, those of installed packages included, sorted."""
    return tuple(sorted({*_builtin(), *_plugins()}))


def spec_for(config: Mapping[str, Any]) -> DecoderSpec:
    """Builds the spec of a model config.

    Raises:
        UnknownArchitecture: Nothing is registered for the first of `architectures`.
        ConfigError: A field is missing or out of range, or asks for something unsupported.
    """
    name = architecture_name(config)
    found = _builtin().get(name)
    if found is None:
        plugin = _plugins().get(name)
        if plugin is None:
            raise UnknownArchitecture(name, known_architectures())
        found = plugin.load()
    spec: DecoderSpec = found(config)
    return spec


@functools.cache
def _builtin() -> Mapping[str, Architecture]:
    """Every `Architecture` in the modules of `llm_models.architectures`."""
    found: dict[str, Architecture] = {}
    for module in pkgutil.iter_modules(architectures.__path__):
        members = vars(import_module(f"{architectures.__name__}.{module.name}")).values()
        shipped = {id(item): item for item in members if isinstance(item, Architecture)}
        found.update({name: item for item in shipped.values() for name in item.names})
    return found


def _plugins() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
