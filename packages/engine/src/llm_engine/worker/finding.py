"""Finds the factory of workers that an option names; knows nothing of what workers do."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from llm_engine.worker.errors import InvalidOption
from llm_engine.worker.worker import create_worker

DEFAULT = "default"


def find_worker(name_or_path: str) -> Callable[..., object]:
    """The factory of that name, called as `factory(mesh, config=WorkerConfig)` on each rank.

    Args:
        name_or_path: "default" for the worker that runs the model, or "module:factory", which must lie at the
            top of its module.

    Raises:
        InvalidOption: It cannot be imported, or is nothing to call.
    """
    if name_or_path == DEFAULT:
        return create_worker
    module_name, _, name = name_or_path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption("worker", f"{name_or_path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidOption("worker", f"{name_or_path!r} is no factory but {type(found).__name__}")
    return found
