"""Objects named by import path, so that nothing executable has to be sent to another process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llm_distributed.errors import ExecutorError


def load_object(path: str) -> Any:  # noqa: ANN401  (whatever the path names)
    """The object named "module:attribute" or "module:attribute.attribute".

    Raises:
        ExecutorError: The path has another form, or names nothing.
    """
    module, separator, attributes = path.partition(":")
    if not (module and separator and attributes):
        raise ExecutorError(f"{path!r} is not of the form module:attribute")
    try:
        found = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ExecutorError(f"cannot load {path!r}: {error}") from error
    return found
