"""Owns every exception that this package raises; knows nothing about models, files or devices."""

from difflib import get_close_matches

# So many known names are listed whole.
_FEW = 16


class ModelError(Exception):
    """Base of all errors of `llm_models`. The message is one line, fit to be shown to a user."""


class ModelNotFound(ModelError):
    """A model name, folder or file does not lead to a model.

    Attributes:
        model: What was asked for.
    """

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model {model!r} not found: {reason}")
        self.model = model


class ConfigError(ModelError):
    """A field of the model's configuration is missing, of a wrong type or out of range.

    Attributes:
        field: The configuration key.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"model config field {field!r}: {reason}")
        self.field = field


class UnsupportedConfig(ConfigError):
    """The configuration is valid but asks for something that the decoder does not do."""


class UnknownArchitecture(ConfigError):
    """No spec is registered for the architecture that the configuration names.

    Attributes:
        architecture: The name in the configuration.
        nearest: Known names like it, the nearest first.
    """

    def __init__(self, architecture: str, known: tuple[str, ...], *, fallback: str | None = None) -> None:
        self.architecture = architecture
        self.nearest = tuple(get_close_matches(architecture, known, n=3))
        hint = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        if len(known) <= _FEW:
            hint = f"; known are {', '.join(known)}"
        verdict = f"; the transformers fallback does not serve it: {fallback}" if fallback else ""
        super().__init__("architectures", f"{architecture!r} has no native spec{hint}{verdict}")


class ShardingError(ConfigError):
    """A model cannot be shared out among the ranks of tensor parallelism."""


class WeightError(ModelError):
    """Base of all errors about weight files.

    Attributes:
        file: The file (or folder) at fault.
        tensor: The tensor at fault, as the file names it, or None.
    """

    def __init__(self, file: object, tensor: str | None, reason: str) -> None:
        where = f"{file}: " if tensor is None else f"{file}: tensor {tensor!r}: "
        super().__init__(where + reason)
        self.file = str(file)
        self.tensor = tensor


class MissingTensor(WeightError):
    """The model needs a tensor that no weight file holds."""


class UnexpectedTensor(WeightError):
    """A weight file holds a tensor that the model has no place for."""


class WrongShape(WeightError):
    """A tensor's shape is not the one that the configuration asks for."""


class WrongDtype(WeightError):
    """A tensor's number format is not one that can be loaded as weights."""


class WrongScale(WeightError):
    """A scale is not a number above 0."""


class UnknownQuantization(WrongDtype):
    """A GGUF tensor has a quantization type that this package does not decode."""


class MissingShard(WeightError):
    """The index names a weight file that is not there."""


class CorruptFile(WeightError):
    """A weight file is truncated, has a wrong magic number, or its header makes no sense."""


class DuplicateTensor(WeightError):
    """Two weight files hold the same tensor, or a file or the index lists it twice."""


class PickleRefused(WeightError):
    """The weights are pickle files, which are read only when that is asked for."""


class GatedModel(ModelNotFound):
    """The hub gives the model only to those who have accepted its terms and are logged in."""


class ModelNotCached(ModelNotFound):
    """The model is not in the local cache, and nothing may be fetched."""


class HubUnreachable(ModelNotFound):
    """The model is not in the local cache, and the hub does not answer."""
