"""Finds a policy by name, entry point or ``module:Class``; knows nothing of what policies do."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import InvalidConfig
from llm_scheduler.fair import FairShare
from llm_scheduler.policies import EarliestDeadlineFirst, FirstComeFirstServed, PriorityThenArrival
from llm_scheduler.policy import Policy
from llm_scheduler.prefix import LongestPrefixFirst

ENTRY_POINT_GROUP = "llm_stack.scheduling_policies"

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        "fcfs": FirstComeFirstServed,
        "priority": PriorityThenArrival,
        "fair": FairShare,
        "deadline": EarliestDeadlineFirst,
        "prefix": LongestPrefixFirst,
    }
)


def installed_policies() -> list[str]:
    """Return the names of all policies, those of this package and those of entry points, sorted."""
    return sorted({*POLICIES, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def make_policy(config: SchedulerConfig) -> Policy:
    """Make the policy that ``config.policy`` names.

    Raises:
        InvalidConfig: Nothing has that name, the path cannot be imported, or it is no ``Policy``.
    """
    name = config.policy
    found = _find(name)
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise InvalidConfig("policy", name, "a subclass of llm_scheduler.Policy")
    return found.from_config(config)


def checked_policy(policy: object) -> Policy:
    """Return the object if it is a policy.

    Raises:
        InvalidConfig: It is not.
    """
    if not isinstance(policy, Policy):
        raise InvalidConfig("policy", policy, "an object of a subclass of llm_scheduler.Policy")
    return policy


def _find(name: str) -> object:
    if name in POLICIES:
        return POLICIES[name]
    try:
        if ":" in name:
            return _import(name)
        for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
            found: object = entry.load()
            return found
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfig("policy", name, f"something that can be imported ({error})") from error
    raise InvalidConfig("policy", name, f"module:Class or one of {', '.join(installed_policies())}")


def _import(path: str) -> object:
    module_name, _, class_name = path.partition(":")
    found: object = importlib.import_module(module_name)
    for part in class_name.split("."):
        found = getattr(found, part)
    return found
