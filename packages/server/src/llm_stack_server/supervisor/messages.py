"""What a supervisor and its workers tell and ask each other. Knows nothing of how it travels."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from llm_engine.options import EngineOptions
from llm_engine.stats import EngineStats

from llm_stack_server.metric_families import Family
from llm_stack_server.settings import ServerSettings
from llm_stack_server.usage_ledger import Levels


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker is told at its start.

    Attributes:
        number: Which worker, from 0.
        listener: File descriptor of the listening socket that all share.
        control: File descriptor of its end of the control channel.
        folder: Where the engine is hosted.
        started: When the server was started, in seconds since 1970.
        settings: The server's options.
        options: The engine's.
    """

    number: int
    listener: int
    control: int
    folder: str
    started: int
    settings: ServerSettings
    options: EngineOptions


# Told; nobody answers.


class Serving(msgspec.Struct, frozen=True, tag=True):
    """Worker: the engine is there, requests are taken."""

    model_names: tuple[str, ...]
    max_model_len: int


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Worker, each second: its metrics. It is also a sign of life."""

    families: list[Family]


class CoreSeen(msgspec.Struct, frozen=True, tag=True):
    """Worker: what a core has counted."""

    generation: int
    stats: EngineStats


class Spend(msgspec.Struct, frozen=True, tag=True):
    """Worker: a key has used tokens."""

    key: str
    num_tokens: int


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Worker: a place is given back, or waited for no more."""

    place: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Supervisor: finish what runs, then end; told twice: end now."""


class Reload(msgspec.Struct, frozen=True, tag=True):
    """Supervisor: read keys and certificates again."""


# Asked.


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Count a request of a key. Answer: `Known`."""

    key: str


class Enter(msgspec.Struct, frozen=True, tag=True):
    """Wait for a place, which has a number of the worker's choice. Answer: `Known`."""

    place: int
    key: str
    size: int
    num_tokens: int
    weight: int = 1


class Gather(msgspec.Struct, frozen=True, tag=True):
    """The metrics of the whole server; with the worker's own. Answer: `Gathered`."""

    families: list[Family]
    generation: int
    stats: EngineStats | None


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Supervisor: the worker's metrics as they are now. Answer: `Measured`."""


class PutResponse(msgspec.Struct, frozen=True, tag=True):
    """Keep a response. Answer: None."""

    response_id: str
    owner: str
    data: bytes
    is_running: bool


class GetResponse(msgspec.Struct, frozen=True, tag=True):
    """Read a kept response. Answer: `Found` or None."""

    response_id: str
    owner: str


class RemoveResponse(msgspec.Struct, frozen=True, tag=True):
    """Forget a response. Answer: None."""

    response_id: str


class CancelResponse(msgspec.Struct, frozen=True, tag=True):
    """End the work at a response; the supervisor asks the worker that does it. Answer: None."""

    response_id: str


# Answers.


class Known(msgspec.Struct, frozen=True, tag=True):
    """Yes; the key's rates as they are now."""

    levels: Levels


class Gathered(msgspec.Struct, frozen=True, tag=True):
    """The metrics of all workers, dead ones included, and what all cores have counted."""

    families: list[Family]
    totals: EngineStats


class Found(msgspec.Struct, frozen=True, tag=True):
    """A kept response."""

    owner: str
    data: bytes
    is_running: bool
    is_lost: bool


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An `ApiError`."""

    status: int
    message: str
    error_type: str
    param: str | None
    code: str | None
    headers: dict[str, str]


Told: TypeAlias = Serving | Measured | CoreSeen | Spend | Leave | Drain | Reload
Question: TypeAlias = (
    Begin | Enter | Gather | Measure | PutResponse | GetResponse | RemoveResponse | CancelResponse
)
Answer: TypeAlias = Known | Gathered | Measured | Found | Refused | None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A question, with a number that the answer repeats."""

    number: int
    question: Question


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer."""

    number: int
    answer: Answer


Frame: TypeAlias = Ask | Reply | Told
