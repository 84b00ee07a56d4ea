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
from llm_models.architectures import AnySpec, Architecture
from llm_models.architectures.pooled_decoders import CLASSIFIER_SUFFIXES, classifier, embedder
from llm_models.config import architecture_name
from llm_models.errors import UnknownArchitecture, UnsupportedConfig
from llm_models.pooling import PooledSpec
from llm_models.spec import DecoderSpec, EncoderDecoderSpec

API_VERSION = 1
GROUP = "llm_stack.architectures"


def known_architectures() -> tuple[str, ...]:
    """All names that are served natively, those of installed packages included, sorted."""
    return tuple(sorted({*_builtin(), *_plugins()}))


def registered() -> Mapping[str, Architecture[AnySpec] | None]:
    """Every native architecture by name; None for those of other packages, which are not imported for it."""
    return {**dict.fromkeys(_plugins()), **_builtin()}


def is_native(name: str) -> bool:
    """Whether `spec_for` or `pooled_spec_for` knows the architecture."""
    return _find(name) is not None or _decoder_behind(name) is not None


def gives_vectors(config: Mapping[str, Any]) -> bool:
    """Whether the architecture is an embedder or a classifier; False too where it is not known.

    Raises:
        ConfigError: A field is missing or out of range, or asks for something unsupported.
    """
    name = architecture_name(config)
    found = _find(name)
    return _decoder_behind(name) is not None if found is None else isinstance(found(config), PooledSpec)


def spec_for(config: Mapping[str, Any]) -> DecoderSpec:
    """Builds the spec of a decoder's config.

    Raises:
        UnknownArchitecture: Nothing is registered for the first of `architectures`.
        UnsupportedConfig: What is registered gives vectors or scores, or has an encoder.
        ConfigError: A field is missing or out of range, or asks for something unsupported.
    """
    name = architecture_name(config)
    found = _find(name)
    if found is None and _decoder_behind(name) is None:
        raise UnknownArchitecture(name, known_architectures())
    spec = None if found is None else found(config)
    if isinstance(spec, EncoderDecoderSpec):
        raise UnsupportedConfig("architectures", f"{name!r} has an encoder: load_encoder_decoder")
    if not isinstance(spec, DecoderSpec):
        raise UnsupportedConfig("architectures", f"{name!r} gives vectors or scores of texts, not text")
    return spec


def encoder_decoder_spec_for(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Builds the spec of a model with an encoder and a decoder.

    Raises:
        UnknownArchitecture: Nothing is registered for the first of `architectures`.
        UnsupportedConfig: What is registered is of another kind.
        ConfigError: A field is missing or out of range, or asks for something unsupported.
    """
    name = architecture_name(config)
    found = _find(name)
    if found is None and _decoder_behind(name) is None:
        raise UnknownArchitecture(name, known_architectures())
    spec = None if found is None else found(config)
    if not isinstance(spec, EncoderDecoderSpec):
        raise UnsupportedConfig("architectures", f"{name!r} is not an encoder with a decoder")
    return spec


def pooled_spec_for(config: Mapping[str, Any]) -> PooledSpec:
    """Builds the spec of a model that gives vectors or scores.

    Every decoder can be had as an embedder (its own class, or the bare model's), and as a classifier over
    texts or tokens.

    Raises:
        UnknownArchitecture: Nothing is registered for the first of `architectures`.
        ConfigError: A field is missing or out of range, or asks for something unsupported.
    """
    name = architecture_name(config)
    found = _find(name)
    if found is not None:
        spec = found(config)
        if isinstance(spec, EncoderDecoderSpec):
            raise UnsupportedConfig("architectures", f"{name!r} gives no vectors or scores of texts")
        return spec if isinstance(spec, PooledSpec) else embedder(spec)
    decoder = _decoder_behind(name)
    if decoder is None:
        raise UnknownArchitecture(name, known_architectures())
    spec = spec_for({**config, "architectures": [decoder]})
    if name.endswith(CLASSIFIER_SUFFIXES):
        return classifier(spec, config, over_tokens=name.endswith("ForTokenClassification"))
    return embedder(spec)


def _find(name: str) -> Architecture[AnySpec] | None:
    if name in _builtin():
        return _builtin()[name]
    plugin = _plugins().get(name)
    if plugin is None:
        return None
    loaded: Architecture[AnySpec] = plugin.load()
    return loaded


def _decoder_behind(name: str) -> str | None:
    """The decoder's name where `name` is a classifier or the bare model over it."""
    for suffix in (*CLASSIFIER_SUFFIXES, "Model"):
        if name.endswith(suffix):
            family = name.removesuffix(suffix)
            candidates = (f"{family}ForCausalLM", f"{family}LMHeadModel")
            return next((candidate for candidate in candidates if _find(candidate) is not None), None)
    return None


@functools.cache
def _builtin() -> Mapping[str, Architecture[AnySpec]]:
    """Every `Architecture` in the modules of `llm_models.architectures`."""
    found: dict[str, Architecture[AnySpec]] = {}
    for module in pkgutil.iter_modules(architectures.__path__):
        members = vars(import_module(f"{architectures.__name__}.{module.name}")).values()
        shipped = {id(item): item for item in members if isinstance(item, Architecture)}
        found.update({name: item for item in shipped.values() for name in item.names})
    return found


def _plugins() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
