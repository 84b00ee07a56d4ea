"""The server's own options, their ranges and help texts. The engine's options live with the engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from llm_stack_server.body_limit import DEFAULT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, DEFAULT_TOTAL_BYTES
from llm_stack_server.errors import StartupError
from llm_stack_server.output_formats.formats import FORMAT_NAMES
from llm_stack_server.stream_sender import DEFAULT_BUFFER_BYTES, DEFAULT_STALL_S

_NOT_NEGATIVE = (
    "max_connections",
    "max_total_body_bytes",
    "max_stored_responses",
    "max_stored_response_bytes",
    "max_stream_buffer_bytes",
    "max_concurrent_requests",
    "max_queued_requests",
    "max_queued_tokens",
    "max_requests_per_key",
    "requests_per_minute",
    "tokens_per_minute",
)
MAX_WORKERS = 64
_SECONDS = ("drain_timeout_s", "max_request_s")
_POSITIVE_SECONDS = ("stream_stall_s", "body_timeout_s")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.\-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_URL = re.compile(r"https?://[^\s/]+(?:/\S*)?")
_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}")
ACCESS_LOG_STYLES = ("off", "text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def _option(default: Any, help_text: str, **metadata: object) -> Any:  # noqa: ANN401 -- stands for any field
    """A dataclass field whose metadata the command line turns into a flag."""
    # A secret never stands in a log by way of repr.
    return field(default=default, repr="secret" not in metadata, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the server listens and whom it serves. Raises `StartupError` naming the option."""

    host: str = _option("127.0.0.1", "Address to listen on; other machines reach it only if you say so.")
    port: int = _option(8000, "TCP port; 0 takes a free one and prints it.")
    grpc_port: int | None = _option(
        None, "TCP port for gRPC on the same address; 0 takes a free one. Without it, gRPC is not spoken."
    )
    api_key: tuple[str, ...] = _option(
        (),
        "KEY or NAME KEY that clients must send as a bearer token; sha256:HEX stands for a key by digest. "
        "Repeat it for several. Without one, all is open.",
        secret=True,
    )
    api_key_file: str | None = _option(
        None, "File with one such key a line; lines that begin with # are skipped. SIGHUP reads it again."
    )
    isolate_cache_by_key: bool = _option(
        False, "Requests of different API keys never share cached prefixes, so that times tell them nothing."
    )
    allow_open: bool = _option(
        False,
        "Serve other machines without API keys or client certificates: anyone who reaches the port.",
    )
    tls_cert: str | None = _option(
        None,
        "PEM file with the server's certificate and chain; then only HTTPS is spoken. SIGHUP reads it again.",
    )
    tls_key: str | None = _option(
        None, "PEM file with its private key, where the certificate's file has none."
    )
    tls_client_ca: str | None = _option(
        None, "PEM file with authorities; clients then need a certificate from one of them."
    )
    cors_origin: tuple[str, ...] = _option(
        (),
        "Origin of web pages that may use the server, such as https://chat.example; repeat it, or * for all.",
    )
    allowed_host: tuple[str, ...] = _option(
        (), "Host name by which a server without keys may be called on a loopback address, besides localhost."
    )
    served_model_name: tuple[str, ...] = _option(
        (), "Name under which clients ask for the model; repeat it for several. By default the model's own."
    )
    mcp_server: tuple[str, ...] = _option(
        (), "LABEL=URL of an MCP server whose tools /v1/responses may call; repeat it for several."
    )
    web_page: bool = _option(
        True, "Serve a web page at /: a chat and live charts. It needs no key, what it asks does."
    )
    mcp: bool = _option(False, "Serve the model's tools to MCP hosts at /mcp.")
    output_format: str = _option(
        "auto",
        "How the model writes reasoning and calls: a format, none, or auto to tell by its chat template.",
        choices=("auto", "none", *FORMAT_NAMES),
    )
    any_dimensions: bool = _option(
        False, "Shorten vectors (dimensions) of models too that do not say that they were trained for it."
    )
    strict: bool = _option(
        False, "Refuse requests with fields that no one here knows; else they are named in x-ignored-fields."
    )
    max_body_bytes: int = _option(DEFAULT_LIMIT_BYTES, "Largest request body; larger ones get 413.")
    max_connections: int = _option(
        0,
        "Clients connected at once; more get 503. Several front ends have equal shares. 0: what the limit of "
        "open files leaves.",
    )
    max_total_body_bytes: int = _option(
        DEFAULT_TOTAL_BYTES,
        "Bytes of all request bodies together, until the ends of their answers; more get 503. Several "
        "front ends have equal shares. 0: no limit.",
    )
    max_stored_responses: int = _option(
        1000, "Answers of /v1/responses kept in memory for reading, continuing and cancelling; 0 keeps none."
    )
    max_stored_response_bytes: int = _option(256 * 2**20, "Memory that these may take, as JSON.")
    max_concurrent_requests: int = _option(
        0, "Sequences that run at once; more wait, and keys with few running go first. 0: the engine decides."
    )
    max_queued_requests: int = _option(1024, "Calls that may wait for that; more get 429. 0: no limit.")
    max_queued_tokens: int = _option(0, "Prompt tokens of the calls that wait; more get 429. 0: no limit.")
    max_requests_per_key: int = _option(
        0, "Sequences of one key, running and waiting; more get 429. 0: no limit."
    )
    requests_per_minute: int = _option(0, "Requests of one key a minute; more get 429. 0: no limit.")
    tokens_per_minute: int = _option(
        0, "Prompt and output tokens of one key a minute; more get 429. 0: no limit."
    )
    max_request_s: float = _option(
        0.0, "Seconds that a request may take; clients may set less in the header x-timeout-s. 0: no limit."
    )
    max_stream_buffer_bytes: int = _option(
        DEFAULT_BUFFER_BYTES,
        "Bytes kept for one stream whose client does not read; beyond it the stream is cut off.",
    )
    stream_stall_s: float = _option(
        DEFAULT_STALL_S, "Seconds for which a stream's client may read nothing before it is cut off."
    )
    body_timeout_s: float = _option(
        DEFAULT_TIMEOUT_S, "Seconds in which a request body must arrive, or it gets 408."
    )
    drain_timeout_s: float = _option(30.0, "Seconds that running requests may take to finish after SIGTERM.")
    api_workers: int = _option(
        1, "Processes that answer HTTP, for one engine. From 2 on, one that dies is started again."
    )
    max_worker_deaths: int = _option(
        8, "Deaths of such processes within five minutes at which the server exits. 1: exit at the first."
    )
    max_core_deaths: int = _option(
        8,
        "Deaths of the engine's process within five minutes at which the server exits; until then it is "
        "started again and running requests go on. 1: exit at the first.",
    )
    log_level: str = _option("info", "What the log on stderr holds.", choices=LOG_LEVELS)
    access_log: str = _option(
        "off", "One line on stderr for each request, at its end.", choices=ACCESS_LOG_STYLES
    )
    otlp_traces_endpoint: str | None = _option(
        None,
        "URL to which spans of requests are sent, such as http://localhost:4318/v1/traces (OTLP over HTTP).",
    )
    traces_sample_ratio: float = _option(
        1.0, "Share of the traces that begin here to send, 0 to 1; of others the client has decided."
    )

    def __post_init__(self) -> None:
        if not self.host:
            raise StartupError("host: must not be empty")
        if not 0 <= self.port <= 65535:
            raise StartupError(f"port: must be between 0 and 65535, got {self.port}")
        if self.grpc_port is not None and not 0 <= self.grpc_port <= 65535:
            raise StartupError(f"grpc_port: must be between 0 and 65535, got {self.grpc_port}")
        if self.output_format not in ("auto", "none", *FORMAT_NAMES):
            raise StartupError(
                f"output_format: must be auto, none or one of {', '.join(FORMAT_NAMES)}, "
                f"got {self.output_format!r}"
            )
        self._check_network()
        if self.max_body_bytes < 1024:
            raise StartupError(f"max_body_bytes: must be at least 1024, got {self.max_body_bytes}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise StartupError(f"{name}: must not be negative, got {getattr(self, name)}")
        self._check_processes()
        for name in _SECONDS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise StartupError(f"{name}: must be a finite number from 0 up, got {value}")
        for name in _POSITIVE_SECONDS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise StartupError(f"{name}: must be a finite number above 0, got {value}")
        if self.log_level not in LOG_LEVELS:
            raise StartupError(f"log_level: must be one of {', '.join(LOG_LEVELS)}, got {self.log_level!r}")
        self._check_observing()
        if not all(self.served_model_name):
            raise StartupError("served_model_name: must not be empty")

    def is_open(self) -> bool:
        """Whether anyone who reaches the port may use the server."""
        return not self.api_key and self.api_key_file is None and self.tls_client_ca is None

    def _check_observing(self) -> None:
        if self.access_log not in ACCESS_LOG_STYLES:
            styles = ", ".join(ACCESS_LOG_STYLES)
            raise StartupError(f"access_log: must be one of {styles}, got {self.access_log!r}")
        if not 0 <= self.traces_sample_ratio <= 1:
            raise StartupError(
                f"traces_sample_ratio: must be between 0 and 1, got {self.traces_sample_ratio}"
            )
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not _URL.fullmatch(endpoint):
            raise StartupError(
                f"otlp_traces_endpoint: must be like http://localhost:4318/v1/traces, got {endpoint!r}"
            )

    def _check_processes(self) -> None:
        for name in ("max_core_deaths", "max_worker_deaths", "api_workers"):
            if getattr(self, name) < 1:
                raise StartupError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.api_workers > MAX_WORKERS:
            raise StartupError(f"api_workers: must be at most {MAX_WORKERS}, got {self.api_workers}")
        if self.api_workers > 1 and self.grpc_port is not None:
            raise StartupError("grpc_port: gRPC is spoken by one process alone: leave api_workers at 1")
        if 0 < self.max_connections < self.api_workers:
            raise StartupError("max_connections: must be at least api_workers, which have equal shares of it")
        share = self.max_total_body_bytes // self.api_workers
        if self.api_workers > 1 and self.max_total_body_bytes > 0 and share < self.max_body_bytes:
            raise StartupError(
                "max_total_body_bytes: must hold max_body_bytes for each of api_workers, which have equal "
                f"shares of it: at least {self.max_body_bytes * self.api_workers}"
            )

    def share(self) -> ServerSettings:
        """The options of one of `api_workers`: it has its part of what each process counts for itself."""
        return replace(
            self,
            api_workers=1,
            max_connections=self.max_connections // self.api_workers,
            max_total_body_bytes=self.max_total_body_bytes // self.api_workers,
        )

    def _check_network(self) -> None:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_cert is None:
                raise StartupError(f"{name}: needs tls_cert")
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise StartupError(
                    f"cors_origin: must be *, or like https://chat.example:8443 with no path, got {origin!r}"
                )
        if self.isolate_cache_by_key and not self.api_key and self.api_key_file is None:
            raise StartupError("isolate_cache_by_key: needs api_key or api_key_file")
        for host in self.allowed_host:
            if not _HOST.fullmatch(host):
                raise StartupError(f"allowed_host: must be a host name without port, got {host!r}")
