"""Field types that several bodies share. Strict: a value is taken as it is or refused, never converted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 4096
MAX_CACHE_SALT = 256
MAX_THINKING_TOKENS = 2**31 - 1


class RequestBody(BaseModel):
    """A JSON object from a client. Fields it does not declare are kept in ``model_extra``."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    # Undeclared fields of an object within a body that change no answer, so that they never count as unknown.
    neutral_fields: ClassVar[frozenset[str]] = frozenset()

    def unknown(self) -> list[str]:
        """Its undeclared fields that are not null, but for neutral ones."""
        extra = self.model_extra
        if not extra:
            return []
        return [
            name for name, value in extra.items() if value is not None and name not in self.neutral_fields
        ]


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings are allowed")
    if not all(stops):
        raise ValueError("a stop string must not be empty")
    return tuple(stops)


def _logit_bias(value: object) -> dict[int, object] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("must be an object of token id to bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} entries are allowed")
    return {_token_id_key(key): bias for key, bias in value.items()}


def _token_id_key(key: object) -> int:
    text = str(key)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"the key {text[:40]!r} is not a token id")
    return int(text)


Int64 = Annotated[int, Field(ge=_INT64_MIN, le=_INT64_MAX)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
StopStrings = Annotated[
    tuple[str, ...], BeforeValidator(_stop_strings, json_schema_input_type=str | list[str] | None)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
CacheSalt = Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)]
LogitBias = Annotated[
    dict[int, Finite] | None,
    BeforeValidator(_logit_bias, json_schema_input_type=dict[str, Finite] | None),
]
