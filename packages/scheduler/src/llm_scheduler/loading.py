"""Finds a scheduler class by entry-point name or by ``module:Class``; knows nothing of what schedulers do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeAlias

from llm_kvcache import KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import IncompatibleScheduler, SchedulerNotFound
from llm_scheduler.protocol import API_VERSION, Scheduler

SchedulerFactory: TypeAlias = Callable[[SchedulerConfig, KVCache], object]

ENTRY_POINT_GROUP = "llm_stack.schedulers"


def installed_schedulers() -> list[str]:
    """Return the names of all installed schedulers, sorted."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def load_scheduler(name_or_path: str, config: SchedulerConfig, cache: KVCache) -> Scheduler:
    """Make the scheduler of that name.

    Args:
        name_or_path: A name of the entry-point group ``llm_stack.schedulers``, or ``module:Class``.
        config: Passed to the class.
        cache: Passed to the class.

    Raises:
        SchedulerNotFound: Nothing is installed under the name, or the path cannot be imported.
        IncompatibleScheduler: The class keeps another version of the protocol, or lacks a part of it.
    """
    scheduler = find_scheduler(name_or_path)(config, cache)
    if not isinstance(scheduler, Scheduler):
        methods = ("add", "abort", "schedule", "update", "fail", "has_work", "stats")
        missing = [name for name in methods if not hasattr(scheduler, name)]
        raise IncompatibleScheduler(name_or_path, f"lacks {', '.join(missing)}")
    return scheduler


def find_scheduler(name_or_path: str) -> SchedulerFactory:
    """Return the scheduler class of that name, not yet made; the rest is as in ``load_scheduler``."""
    factory = _find_class(name_or_path)
    version = getattr(factory, "API_VERSION", None)
    if version != API_VERSION:
        message = f"API_VERSION is {version}, this package needs {API_VERSION}"
        raise IncompatibleScheduler(name_or_path, message)
    return factory


def _find_class(name_or_path: str) -> SchedulerFactory:
    if ":" in name_or_path:
        return _import_class(name_or_path)
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name_or_path):
        try:
            found: object = entry.load()
        except (ImportError, AttributeError) as error:
            raise SchedulerNotFound(name_or_path, installed_schedulers(), str(error)) from error
        return _as_class(name_or_path, found)
    raise SchedulerNotFound(name_or_path, installed_schedulers())


def _import_class(path: str) -> SchedulerFactory:
    module_name, _, class_name = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise SchedulerNotFound(path, installed_schedulers(), str(error)) from error
    return _as_class(path, found)


def _as_class(name: str, found: object) -> SchedulerFactory:
    if not isinstance(found, type):
        raise IncompatibleScheduler(name, f"expected a class, found {type(found).__name__}")
    return found
