"""Finding a scheduler by name or path, and importing the package without torch."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import (
    IncompatibleScheduler,
    SchedulerConfig,
    SchedulerNotFound,
    TokenBudgetScheduler,
    installed_schedulers,
    load_scheduler,
)

CONFIG = SchedulerConfig(max_model_len=64)


def load(name: str) -> object:
    return load_scheduler(name, CONFIG, KVCache([FullAttention(4)], 16))


class Custom(TokenBudgetScheduler):
    """A third party's class."""


class FromTheFuture(TokenBudgetScheduler):
    API_VERSION = 2


class WithoutVersion:
    def __init__(self, config: object, cache: object) -> None: ...


class WithoutMethods(WithoutVersion):
    API_VERSION = 1


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("third_party_schedulers")
    for member in (Custom, FromTheFuture, WithoutVersion, WithoutMethods):
        setattr(fake, member.__name__, member)
    fake.make = lambda config, cache: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "third_party_schedulers", fake)


def test_the_default_is_an_entry_point() -> None:
    assert "default" in installed_schedulers()
    assert type(load("default")) is TokenBudgetScheduler


def test_a_path_names_a_class() -> None:
    assert type(load("third_party_schedulers:Custom")) is Custom


@pytest.mark.parametrize(
    "name",
    ["nope", "no_such_module:Class", "third_party_schedulers:Nope", ":Class", "third_party_schedulers:"],
)
def test_unknown_names_list_what_is_installed(name: str) -> None:
    with pytest.raises(SchedulerNotFound) as caught:
        load(name)
    assert "default" in caught.value.installed
    assert "default" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FromTheFuture", "API_VERSION is 2, this package needs 1"),
        ("WithoutVersion", "API_VERSION is None"),
        ("WithoutMethods", "lacks add, abort, schedule, update, fail, has_work, stats"),
        ("make", "expected a class"),
    ],
)
def test_what_does_not_keep_the_protocol_is_refused(name: str, message: str) -> None:
    with pytest.raises(IncompatibleScheduler, match=message):
        load(f"third_party_schedulers:{name}")


def test_it_imports_where_torch_does_not() -> None:
    code = "import sys; sys.modules['torch'] = None; import llm_scheduler; llm_scheduler.TokenBudgetScheduler"
    subprocess.run([sys.executable, "-c", code], check=True)
