"""The first line of a record: what the scheduler was made of; knows nothing of the calls that follow."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

from llm_kvcache import Group, KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.recording.values import Decoded, Json, decode, encode, encode_fields

FORMAT = "llm-scheduler-record"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a scheduler was made of.

    Attributes:
        scheduler: Its name, as for ``load_scheduler``.
        config: Its settings.
        groups: The KV groups of its cache.
        num_blocks: Blocks of the cache.
        cache_options: Further arguments of the cache, such as ``enable_prefix_caching``.
        has_clock: Whether it took its time from the recorder; where it did not, decisions by the clock may
            differ in a replay.
        packages: Versions of the packages.
        started_at_s: When, in seconds since 1970.
    """

    scheduler: str
    config: SchedulerConfig
    groups: Sequence[Group]
    num_blocks: int
    cache_options: Mapping[str, Decoded] = field(default_factory=dict)
    has_clock: bool = True
    packages: Mapping[str, str] = field(default_factory=dict)
    started_at_s: float = 0.0

    def make_cache(self) -> KVCache:
        """Make an empty cache like the one that the record started with."""
        return KVCache(self.groups, self.num_blocks, **self.cache_options)

    def to_json(self) -> dict[str, Json]:
        """Return the line.

        Raises:
            Unrecordable: A setting has no form in a record.
        """
        return {
            "record": FORMAT,
            "version": FORMAT_VERSION,
            "scheduler": self.scheduler,
            "config": encode_fields(self.config),
            "groups": [[type(group).__name__, encode_fields(group)] for group in self.groups],
            "num_blocks": self.num_blocks,
            "cache_options": encode(dict(self.cache_options)),
            "has_clock": self.has_clock,
            "packages": encode(dict(self.packages)),
            "started_at_s": self.started_at_s,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Json]) -> Header:
        """Read the line.

        Raises:
            ValueError, TypeError, KeyError, LLM package errors: It is no header, or one of another version.
        """
        if line.get("record") != FORMAT or line.get("version") != FORMAT_VERSION:
            raise ValueError(f"expected the header of {FORMAT} version {FORMAT_VERSION}")
        config = {name: decode(value) for name, value in line["config"].items()}
        return cls(
            scheduler=str(line["scheduler"]),
            config=SchedulerConfig(**config),
            groups=[_group(*pair) for pair in line["groups"]],
            num_blocks=int(line["num_blocks"]),
            cache_options=decode(line["cache_options"]),
            has_clock=bool(line["has_clock"]),
            packages=decode(line["packages"]),
            started_at_s=float(line["started_at_s"]),
        )


def installed_packages() -> dict[str, str]:
    """Return the versions that a plan may depend on."""
    found = {"python": platform.python_version()}
    for name in ("llm-stack-scheduler", "llm-kvcache", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def now_s() -> float:
    """Return seconds since 1970."""
    return time.time()


def _group(kind: str, entries: Mapping[str, Json]) -> Group:
    made = {group.__name__: group for group in get_args(Group)}.get(kind)
    if made is None:
        raise ValueError(f"unknown KV group {kind!r}")
    group: Group = made(**{name: decode(value) for name, value in entries.items()})
    return group
