"""Owns typed reading of a Hugging Face model config; knows nothing about architectures or files."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from llm_models.activations import HF_ACTIVATIONS, Activation
from llm_models.errors import ConfigError, UnsupportedConfig

_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class ConfigReader:
    """Reads fields of one config with their type checked.

    Every method raises `ConfigError`, naming the field, when the value is missing (and has no default), of a
    wrong type, or out of range. A field set to null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any], *, prefix: str = "") -> None:
        self._config = config
        self._prefix = prefix

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._config.get(field) is not None

    def states(self, field: str) -> bool:
        """Whether the field is there, null or not."""
        return field in self._config

    def fields(self) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(self._config)

    def unsupported(self, field: str, reason: str) -> UnsupportedConfig:
        """The error about a field that asks for what is not done."""
        return UnsupportedConfig(self._prefix + field, reason)

    def positive_int(self, field: str, default: int | None = None) -> int:
        """An integer above zero."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self._error(field, f"must be an integer above 0, not {value!r}")
        return value

    def positive_float(self, field: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._error(field, f"must be a finite number above 0, not {value!r}")
        return float(value)

    def boolean(self, field: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self._error(field, f"must be true or false, not {value!r}")
        return value

    def string(self, field: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self._error(field, f"must be a string, not {value!r}")
        return value

    def sequence(self, field: str) -> list[Any]:
        """A list."""
        value = self._value(field, None)
        if not isinstance(value, list | tuple):
            raise self._error(field, f"must be a list, not {value!r}")
        return list(value)

    def section(self, field: str) -> "ConfigReader | None":
        """A nested object, or None when it is missing."""
        value = self._config.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._error(field, f"must be an object, not {value!r}")
        return ConfigReader(value, prefix=f"{self._prefix}{field}.")

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._error(field, f"must be a finite number, not {value!r}")
        return float(value)

    def whole_number(self, field: str, default: int | None = None) -> int:
        """An integer from zero on."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._error(field, f"must be an integer from 0 on, not {value!r}")
        return value

    def floats(self, field: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Numbers, infinite ones too; transformers 5 spells those `{"__float__": "Infinity"}`."""
        if not self.has(field):
            return default
        values = []
        for item in self.sequence(field):
            value: Any = item.get("__float__") if isinstance(item, Mapping) else item
            try:
                values.append(float(value))
            except (TypeError, ValueError):
                raise self._error(field, f"must hold numbers, not {item!r}") from None
        return tuple(values)

    def activation(self, field: str = "hidden_act", default: str = "silu") -> Activation:
        """The activation that the field names."""
        name = self.string(field, default)
        if name not in HF_ACTIVATIONS:
            raise UnsupportedConfig(self._prefix + field, f"{name!r} is none of {', '.join(HF_ACTIVATIONS)}")
        return HF_ACTIVATIONS[name]

    def refuse(self, field: str, reason: str) -> None:
        """Raises `UnsupportedConfig` when the field is there and not null, false or empty."""
        if self._config.get(field):
            raise UnsupportedConfig(self._prefix + field, reason)

    def _value(self, field: str, default: object) -> object:
        value: object = self._config.get(field)
        if value is None:
            value = default
        if value is None:
            raise self._error(field, "is missing")
        return value

    def _error(self, field: str, reason: str) -> ConfigError:
        return ConfigError(self._prefix + field, reason)


def architecture_name(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`.

    Raises:
        ConfigError: The field is missing, empty or not a list of strings.
    """
    names = ConfigReader(config).sequence("architectures")
    if not names or not isinstance(names[0], str):
        raise ConfigError("architectures", f"must start with a name, not {names!r}")
    return names[0]


def checkpoint_dtype(config: Mapping[str, Any]) -> torch.dtype | None:
    """The number format that the checkpoint was saved for (`dtype`, or `torch_dtype` in older configs).

    Returns:
        None when the config does not say, as for GGUF files.

    Raises:
        UnsupportedConfig: The field names something else than float32, float16 or bfloat16.
    """
    for field in ("dtype", "torch_dtype"):
        name = config.get(field)
        if name is None:
            continue
        dtype = _DTYPES.get(str(name).removeprefix("torch."))
        if dtype is None:
            raise UnsupportedConfig(field, f"{name!r} is none of {', '.join(_DTYPES)}")
        return dtype
    return None
