"""Owns the exceptions of this package; knows nothing of what raises them."""

from __future__ import annotations


class TokenizerError(Exception):
    """Base of every error that this package raises on purpose."""


class TokenizerFileError(TokenizerError):
    """A tokenizer file is missing, broken, truncated, or of a kind that is not supported."""


class TemplateError(TokenizerError):
    """A chat template is missing or malformed, refused the messages, or went over its limits."""


class InvalidArgument(TokenizerError, ValueError):
    """An argument is wrong; nothing was changed.

    Attributes:
        field: The argument's name.
        message: What is wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
