"""A pytest plugin: several processes share one set of tests, each taking the next that none has taken.

Owns the taking and the list of outcomes; knows nothing about what the tests test. `share_tests.py` loads it.
"""

import ctypes
import gc
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def name_of(node_id: str) -> str:
    """The same in every process: an id may hold the address of an object."""
    return _ADDRESS.sub("0x", node_id)


def give_memory_back() -> None:
    """What the last file's models took: C libraries keep freed memory, which adds up over files."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


class Share:
    """This process's part: the tests it takes, and a line of JSON for each outcome."""

    def __init__(self, folder: Path, worker: int, num_workers: int, by: str) -> None:
        self._folder, self._worker, self._num_workers, self._by = folder, worker, num_workers, by
        self._outcomes = (folder / f"outcomes{worker}.jsonl").open("w", buffering=1)

    def _note(self, **values: object) -> None:
        self._outcomes.write(json.dumps(values) + "\n")

    def _take(self, unit: str) -> bool:
        name = hashlib.sha256(unit.encode()).hexdigest()
        try:
            os.close(os.open(self._folder / "taken" / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _taken(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        """Starts at this process's part of the list, so that neighbours, which are alike, stay together."""
        units: dict[str, list[pytest.Item]] = {}
        for item in items:
            units.setdefault(str(item.path) if self._by == "file" else name_of(item.nodeid), []).append(item)
        names = list(units)
        first = self._worker * len(names) // self._num_workers
        for name in names[first:] + names[:first]:
            if self._take(name):
                yield from units[name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """As pytest's own loop, over the tests that are taken."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        self._note(collected=[name_of(item.nodeid) for item in session.items])
        taken = self._taken(session.items)
        item = next(taken, None)
        while item is not None:
            following = next(taken, None)
            self._note(test=name_of(item.nodeid))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if following is None or following.path != item.path:
                give_memory_back()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        self._note(finished=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes an outcome; a skip by a mark comes in the set-up."""
        text = str(report.longrepr)[-2000:] if report.failed else ""
        self._note(
            test=name_of(report.nodeid),
            when=report.when,
            outcome=report.outcome,
            seconds=report.duration,
            text=text,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that `share_tests.py` sets."""
    group = parser.getgroup("share")
    group.addoption("--share-folder", type=Path, required=True)
    group.addoption("--share-worker", type=int, required=True)
    group.addoption("--share-workers", type=int, required=True)
    group.addoption("--share-by", choices=["test", "file"], required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the part of this process."""
    option = config.option
    share = Share(option.share_folder, option.share_worker, option.share_workers, option.share_by)
    config.pluginmanager.register(share, "share")
