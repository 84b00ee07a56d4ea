"""What the routes share: engine, metrics, names. One object an application, passed, never global."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol

from fastapi import Request
from llm_engine.stats import EngineStats

from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import ApiError
from llm_stack_server.keys import KeyRing
from llm_stack_server.lifecycle import Lifecycle
from llm_stack_server.mcp_tools.remote import AllowedServers, allowed_servers
from llm_stack_server.metric_families import Family
from llm_stack_server.metrics import Metrics
from llm_stack_server.observing.journal import RequestJournal
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.formats import format_named, format_of_template
from llm_stack_server.response_shelf import BackgroundRuns, LocalShelf, ResponseShelf
from llm_stack_server.response_store import response_store_of
from llm_stack_server.settings import ServerSettings
from llm_stack_server.usage_ledger import Ledger, ledger_of
from llm_stack_server.usage_limits import UsageLimits


class MetricsHub(Protocol):
    """Where the metrics of several front ends come together."""

    def note_core(self, generation: int, stats: EngineStats) -> None:
        """Tell what a core has counted."""
        ...

    async def gather(
        self, families: list[Family], generation: int, stats: EngineStats | None
    ) -> tuple[list[Family], EngineStats]:
        """The metrics of all, with ``families`` for this one's, and the totals of all cores."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the front ends of one server have in common.

    Attributes:
        ledger: Places and rates.
        responses: Stored responses.
        metrics: Everybody's metrics.
        started: When the server was started, in seconds since 1970.
    """

    ledger: Ledger
    responses: ResponseShelf
    metrics: MetricsHub
    started: int


@dataclass(slots=True, kw_only=True)
class Context:
    """The application's state."""

    settings: ServerSettings
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    metrics: Metrics = field(default_factory=Metrics)
    journal: RequestJournal = field(init=False)
    shared: Shared | None = None
    background: BackgroundRuns = field(default_factory=BackgroundRuns)
    keys: KeyRing = field(init=False)
    usage: UsageLimits = field(init=False)
    responses: ResponseShelf = field(init=False)
    mcp_servers: AllowedServers = field(init=False)
    package_version: str = field(default_factory=lambda: version("llm-stack-server"))
    started: int = field(init=False)

    def __post_init__(self) -> None:
        self.journal = RequestJournal(self.metrics.request_outcomes)
        self.metrics.show(
            "http_requests_in_flight",
            "HTTP and gRPC requests that have not ended; those for probes and metrics do not count.",
            lambda: self.lifecycle.in_flight,
        )
        self.keys = KeyRing(self.settings.api_key, self.settings.api_key_file)
        shared = self.shared
        ledger = ledger_of(self.settings) if shared is None else shared.ledger
        self.usage = UsageLimits(ledger, self.metrics)
        self.mcp_servers = AllowedServers(allowed_servers(self.settings.mcp_server))
        if shared is None:
            self.responses = LocalShelf(response_store_of(self.settings), self.background)
        else:
            self.responses = shared.responses
        self.started = int(time.time()) if shared is None else shared.started

    def model_names(self) -> tuple[str, ...]:
        """The names under which the model is served; the first one is used in answers that name none."""
        engine = self.lifecycle.engine
        default = (engine.model_name,) if engine is not None else ()
        return self.settings.served_model_name or default

    def check_model(self, model: str | None) -> str:
        """The model's name for the answer.

        Raises:
            ApiError: 404 where it is not served here.
        """
        names = self.model_names()
        if model is None:
            return names[0]
        if model not in names:
            served = ", ".join(names)
            raise ApiError(
                404,
                f"the model {model[:100]!r} does not exist here; served: {served}",
                param="model",
                code="model_not_found",
            )
        return model

    def output_format(self, engine: Engine) -> Format | None:
        """How the model writes reasoning and calls; None where all of it is text."""
        name = self.settings.output_format
        if name == "none":
            return None
        if name != "auto":
            return format_named(name)
        return format_of_template(engine.tokenizer.chat_template or "")

    def fingerprint(self) -> str:
        """Changes whenever model or version do."""
        names = "|".join((*self.model_names(), self.package_version))
        return "fp_" + hashlib.blake2s(names.encode(), digest_size=6).hexdigest()


def context_of(request: Request) -> Context:
    """The context of the application that serves ``request``."""
    context: Context = request.app.state.context
    return context
