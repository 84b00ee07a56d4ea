"""Owns eviction policies as seen from Python: the names of the native ones, the protocol for one's own."""

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from llm_kvcache.errors import InvalidArgument

POLICIES: tuple[str, ...] = ("lru", "lfu", "priority+ttl", "cost")
"""The native policies: least recently used; least often used, with aging; expired, then lowest priority, then
least recently used; least recompute cost x reuse, with aging (GreedyDual-Size-Frequency, Cherkasova 1998)."""

ENTRY_POINT_GROUP = "llm_stack.eviction_policies"
"""Where packages publish policies of their own: classes that are called with the number of blocks."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """What is known about a block when it becomes cached.

    Attributes:
        priority: As set by `KVCache.set_retention`; higher should be evicted later.
        expires_at: When the priority runs out, on the clock of `KVCache.set_time`, seconds; None: never.
        cost: What computing the block again would cost, relative to others.
        parent: The block before it in its sequence, if held. Contents can be found only through those before
            them, so a parent should be evicted after its children.
    """

    priority: int
    expires_at: float | None
    cost: float
    parent: int | None


@runtime_checkable
class EvictionPolicy(Protocol):
    """An order of eviction over cached blocks: those without an owner whose contents can be found.

    The cache calls it under its lock, in the thread of whoever called the cache; it must not call the cache.
    An exception becomes `PolicyError`. It may also have `touch(block)` (the contents of a block, cached or in
    use, were found again; a `remove` follows where it was cached), `forget(block)` (the contents of a block
    that is not cached are gone) and `set_time(now_s)`.

    A sequence gives back its deepest block first, so among equals the block inserted earlier goes first.
    """

    def insert(self, block: int, info: BlockInfo) -> None:
        """Takes in a block that became cached: it is the most recently used one."""
        ...

    def remove(self, block: int) -> None:
        """Takes out a cached block that has an owner again, or whose contents are gone."""
        ...

    def evict(self) -> int:
        """Takes out the block to give to a new owner; called only while blocks are cached."""
        ...

    def order(self) -> list[int]:
        """Returns the cached blocks in the order in which `evict` would take them, for checks."""
        ...


def installed_policies() -> list[str]:
    """Returns the names of all policies: the native ones and those that packages publish, sorted."""
    return sorted({*POLICIES, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def resolve_policy(policy: object, num_blocks: int) -> object:
    """Returns a name of `POLICIES`, or an object with the methods of `EvictionPolicy`.

    Args:
        policy: Such a name or object, the name of an entry point of `llm_stack.eviction_policies`, or
            `module:Class`; classes are called with `num_blocks`.
        num_blocks: Blocks of the pool.

    Raises:
        InvalidArgument: There is no such policy, or it lacks a method.
    """
    if isinstance(policy, str):
        if policy in POLICIES:
            return policy
        policy = _find_class(policy)(num_blocks)
    if not isinstance(policy, EvictionPolicy):
        missing = [name for name in ("insert", "remove", "evict", "order") if not hasattr(policy, name)]
        raise InvalidArgument("policy", policy, f"lacks {', '.join(missing)}")
    return policy


def _find_class(name: str) -> type:
    found: object = None
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        else:
            found = next((entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP, name=name)), None)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument("policy", name, f"cannot be loaded: {error}") from error
    if not isinstance(found, type):
        known = ", ".join(installed_policies())
        raise InvalidArgument("policy", name, f"must be one of {known}, or module:Class")
    return found
