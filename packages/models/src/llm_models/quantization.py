"""Owns how a model's linear layers are quantized, as config or an option state it; knows nothing of files.

Quantized means: e4m3 weights with float32 scales. Embeddings, head, norms and routers never are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig

Quantization = Literal["fp8"]
WeightScales = Literal["tensor", "channel", "block"]

BLOCK = 128
"""Outputs, and inputs, that share a scale where scales are a block."""

_FIELD = "quantization_config"
_METHODS = ("fp8", "compressed-tensors")
_FORMATS = ("float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How linear layers are quantized.

    Attributes:
        weights: One scale a tensor, an output channel, or a block of 128 x 128.
        static_activations: The checkpoint has a scale of each layer's inputs; otherwise it is found anew in
            every step, for each token.
        at_load: The files hold wider numbers, which are quantized while they are loaded.
        has_cache_scales: Scales of keys and values that the files hold are those of an e4m3 cache.
        left_out: Modules that are not quantized: names as the checkpoint has them, ends of names, beginnings
            of names, and regular expressions after `re:`.
    """

    weights: WeightScales
    static_activations: bool = False
    at_load: bool = False
    has_cache_scales: bool = True
    left_out: tuple[str, ...] = ()

    def leaves_out(self, module: str) -> bool:
        """Whether the module, as the checkpoint calls it, keeps the model's number format."""
        return any(_matches(entry, module) for entry in self.left_out)


AT_LOAD = Scheme(weights="channel", at_load=True)
"""What the option `fp8` makes of a checkpoint that is not quantized."""


def read_scheme(config: Mapping[str, Any], quantization: Quantization | None = None) -> Scheme | None:
    """What a config's `quantization_config` and the option `quantization` ask for together.

    Read are `fp8` with blocks of 128 x 128 (DeepSeek, Qwen3) or a scale a tensor, and `compressed-tensors` in
    the format `float-quantized` with a scale a tensor, channel or block. A quantized checkpoint stays as it
    is under the option `fp8`.

    Args:
        config: The model config.
        quantization: The option.

    Returns:
        None where nothing is quantized.

    Raises:
        ConfigError: A field is of a wrong type, or `quantization` is unknown.
        UnsupportedConfig: A field asks for another number format or layout of scales.
    """
    if quantization is not None and quantization not in get_args(Quantization):
        known = ", ".join(get_args(Quantization))
        raise ConfigError("quantization", f"{quantization!r} is none of {known}, and not None")
    section = ConfigReader(config).section(_FIELD) if config.get(_FIELD) else None
    if section is None:
        return None if quantization is None else AT_LOAD
    method = section.string("quant_method")
    if method == "fp8":
        return _fp8(section)
    if method == "compressed-tensors":
        return _compressed_tensors(section)
    reason = f"{method!r} is none of {', '.join(_METHODS)}"
    raise UnsupportedConfig(f"{_FIELD}.quant_method", reason)


def _fp8(section: ConfigReader) -> Scheme:
    _require(section, "fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    activations = _require(section, "activation_scheme", "dynamic", ("dynamic", "static"))
    is_blocked = section.has("weight_block_size")
    if is_blocked:
        _check_block(section, "weight_block_size")
    return Scheme(
        weights="block" if is_blocked else "tensor",
        static_activations=activations == "static",
        left_out=_names(section, "modules_to_not_convert"),
    )


def _compressed_tensors(section: ConfigReader) -> Scheme | None:
    groups, is_e4m3 = section.section("config_groups"), _has_e4m3_cache(section)
    if (groups is None or not groups.fields()) and is_e4m3:
        return None  # The cache alone is quantized.
    _require(section, "format", "float-quantized", _FORMATS)
    if groups is None or not groups.fields():
        raise ConfigError(f"{_FIELD}.config_groups", "is missing")
    found = {_group(groups, name) for name in groups.fields()}
    if len(found) > 1:
        reason = "its groups quantize in different ways, which is not supported"
        raise UnsupportedConfig(f"{_FIELD}.config_groups", reason)
    weights, is_static = found.pop()
    return Scheme(
        weights=weights,
        static_activations=is_static,
        has_cache_scales=is_e4m3 is not False,
        left_out=_names(section, "ignore"),
    )


def _has_e4m3_cache(section: ConfigReader) -> bool | None:
    """Whether the scales of keys and values are for e4m3 and stand in the files; None: nothing is said."""
    if not section.has("kv_cache_scheme") or (scheme := section.section("kv_cache_scheme")) is None:
        return None
    is_float = scheme.string("type", "float") == "float" and scheme.positive_int("num_bits", 8) == 8
    return is_float and scheme.boolean("symmetric", True) and not scheme.boolean("dynamic", False)


def _group(groups: ConfigReader, name: str) -> tuple[WeightScales, bool]:
    """Scales of the weights, and whether those of the activations are static."""
    group = groups.section(name)
    weights = None if group is None else group.section("weights")
    activations = None if group is None else group.section("input_activations")
    if weights is None:
        raise ConfigError(f"{_FIELD}.config_groups.{name}.weights", "is missing")
    if activations is None:
        field = f"{_FIELD}.config_groups.{name}.input_activations"
        raise UnsupportedConfig(field, "layers whose weights alone are quantized are not supported")
    for part in (weights, activations):
        _require(part, "type", "float", ("float",))
        if part.positive_int("num_bits", 8) != 8:
            raise part.unsupported("num_bits", "only e4m3, of 8 bits, is supported")
        if not part.boolean("symmetric", True):
            raise part.unsupported("symmetric", "zero points are not supported")
    if weights.boolean("dynamic", False):
        raise weights.unsupported("dynamic", "scales of weights must be in the checkpoint")
    strategy = _require(weights, "strategy", "tensor", get_args(WeightScales))
    scales: WeightScales = next(known for known in get_args(WeightScales) if known == strategy)
    if scales == "block":
        _check_block(weights, "block_structure")
    is_static = not activations.boolean("dynamic", False)
    _require(activations, "strategy", "tensor", ("tensor",) if is_static else ("tensor", "token", "group"))
    return scales, is_static


def _require(section: ConfigReader, field: str, default: str, known: tuple[str, ...]) -> str:
    value = section.string(field, default)
    if value not in known:
        raise section.unsupported(field, f"{value!r} is none of {', '.join(known)}")
    return value


def _check_block(section: ConfigReader, field: str) -> None:
    if (sizes := section.sequence(field)) != [BLOCK, BLOCK]:
        raise section.unsupported(field, f"blocks of {sizes} are not supported, only [{BLOCK}, {BLOCK}]")


def _names(section: ConfigReader, field: str) -> tuple[str, ...]:
    names = section.sequence(field) if section.has(field) else []
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{_FIELD}.{field}", f"must be a list of strings, not {names!r}")
    return tuple(names)


def _matches(entry: str, module: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return module == entry or module.startswith(entry + ".") or module.endswith("." + entry)
