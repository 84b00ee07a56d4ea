"""Owns the checks of a caller's texts, flags and single ids; knows nothing of what they are for."""

from __future__ import annotations

import operator

import numpy as np

from llm_tokenizer.errors import InvalidArgument


def check_text(field: str, value: object) -> None:
    """Refuse what is not a string.

    Raises:
        InvalidArgument: It is of another type.
    """
    if not isinstance(value, str):
        raise InvalidArgument(field, f"must be a string, is {type(value).__name__}")


def check_flag(field: str, value: object) -> None:
    """Refuse what is neither true nor false; numpy's bool is taken as well.

    Raises:
        InvalidArgument: It is of another type.
    """
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise InvalidArgument(field, f"must be True or False, is of type {type(value).__name__}")


def not_unicode(field: str, error: UnicodeEncodeError) -> InvalidArgument:
    """The refusal of a text with lone surrogates."""
    return InvalidArgument(field, f"is not valid Unicode ({error.reason})")


def whole_number(field: str, value: object) -> int:
    """An integer of any integer type, numpy's included; a bool is none.

    Raises:
        InvalidArgument: It is of another type.
    """
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)  # type: ignore[arg-type]  # what has no index raises TypeError
    except TypeError:
        pass
    raise InvalidArgument(field, f"must be an integer, is of type {type(value).__name__}")
