"""Owns typed reading of a GGUF file's metadata and telling its family; knows nothing about tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from llm_models.errors import ConfigError, UnknownArchitecture, UnsupportedConfig
from llm_models.loading.gguf_files import GGUFFile, StringArray
from llm_models.loading.gguf_names import FAMILIES, MISTRAL, MIXTRAL, Family


class Keys:
    """The keys below the file's architecture.

    Every method raises `ConfigError`, naming the key, when the value is missing (and has no default) or of a
    wrong type, and `UnsupportedConfig` when it is a list where one number for all layers is needed.

    Raises:
        UnknownArchitecture: The file's architecture is not one of those read here.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._metadata: Mapping[str, Any] = file.metadata
        self.prefix = str(file.metadata.get("general.architecture"))
        if self.prefix not in FAMILIES:
            raise UnknownArchitecture(self.prefix, tuple(FAMILIES))

    @property
    def family(self) -> Family:
        """The family; Mistral and Mixtral hide behind `llama`."""
        if self.prefix == "llama" and self.has("expert_count"):
            return MIXTRAL
        if self.prefix == "llama" and self.has("attention.sliding_window"):
            return MISTRAL
        return FAMILIES[self.prefix]

    def has(self, key: str) -> bool:
        """Whether the key is there and not zero, which stands for "unused"."""
        value = self._metadata.get(f"{self.prefix}.{key}")
        return value.size > 0 if isinstance(value, np.ndarray) else bool(value)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer above zero."""
        value = self._single(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        value = self._single(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value)
        return float(value)

    def string(self, key: str, default: str) -> str:
        """A string."""
        value = self._metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, str):
            raise self.error(key, value)
        return value

    def per_layer(self, key: str) -> list[Any] | int:
        """A list of one value a layer, or one integer."""
        value = self._metadata.get(f"{self.prefix}.{key}")
        return value.tolist() if isinstance(value, np.ndarray) else self.integer(key)

    def error(self, key: str, value: object) -> ConfigError:
        """What to raise for a value that makes no sense."""
        name = f"{self.prefix}.{key}"
        if isinstance(value, np.ndarray | StringArray):
            return UnsupportedConfig(name, "differs between layers")
        return ConfigError(name, "is missing" if value is None else f"must not be {value!r}")

    def _single(self, key: str, default: float | None) -> object:
        """The value; of a list of equal values that value."""
        value: object = self._metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            single: object = value[0].item()
            return single
        return value
