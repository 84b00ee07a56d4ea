"""Where the records of a server go by its options: access log and traces. Opened once, closed at exit."""

from __future__ import annotations

from collections.abc import Callable

from llm_stack_server.errors import StartupError
from llm_stack_server.metrics import Metrics
from llm_stack_server.observing.access_log import AccessLog
from llm_stack_server.observing.journal import RequestJournal
from llm_stack_server.observing.trace_context import Sampler
from llm_stack_server.settings import ServerSettings

OFF = "off"


class Outlets:
    """What takes the records of a journal until it is closed."""

    def __init__(
        self, settings: ServerSettings, journal: RequestJournal, metrics: Metrics, log_descriptor: int
    ) -> None:
        """Open what the options ask for.

        Args:
            settings: The options.
            journal: Whose records are taken.
            metrics: Where lost ones are counted.
            log_descriptor: The file descriptor that the access log is written to.

        Raises:
            StartupError: traces are asked for and OpenTelemetry is not installed.
        """
        self._closers: list[Callable[[], None]] = []
        if settings.otlp_traces_endpoint is not None:
            self._open_traces(settings, settings.otlp_traces_endpoint, journal, metrics)
        if settings.access_log != OFF:
            log = AccessLog(log_descriptor, settings.access_log, metrics.access_log_dropped.inc)
            journal.sinks.append(log)
            self._closers.append(log.close)

    def _open_traces(
        self, settings: ServerSettings, endpoint: str, journal: RequestJournal, metrics: Metrics
    ) -> None:
        try:
            from llm_stack_server.observing.traces import TraceExport  # OpenTelemetry is an extra
        except ImportError as error:
            raise StartupError(
                f"otlp_traces_endpoint: OpenTelemetry is not installed ({error}): "
                "install llm-stack-server[tracing]"
            ) from None
        export = TraceExport(endpoint, metrics.trace_requests_dropped.inc)
        journal.sampler = Sampler(settings.traces_sample_ratio)
        journal.sinks.append(export)
        self._closers.append(export.close)

    def close(self) -> None:
        """Write and send what waits; each takes at most a few seconds."""
        for close in self._closers:
            close()
