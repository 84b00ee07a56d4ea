"""The exceptions of the simulator; knows nothing of what raises them."""

from __future__ import annotations

from llm_scheduler.errors import SchedulerError


class SimulationError(SchedulerError):
    """Base of everything the simulator raises on purpose."""


class InvalidField(SimulationError, ValueError):
    """A description is malformed.

    Attributes:
        field: The field at fault.
        message: What is wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    @classmethod
    def require(cls, field: str, holds: bool, message: str) -> None:
        """Raise this error for the field unless the condition holds."""
        if not holds:
            raise cls(field, message)


class InvalidWorkload(InvalidField):
    """A workload, or the description of one, is malformed."""


class InvalidStepTime(InvalidField):
    """A step-time model is malformed or cannot be fitted."""


class InvalidSetup(InvalidField):
    """A setting of the simulated engine or of its report is outside its range."""


class TraceError(SimulationError, ValueError):
    """A line of a file cannot be read.

    Attributes:
        path: The file.
        line: Its line, from 1; 0 where the file as a whole is at fault.
        field: The field or column at fault; empty where the line as a whole is.
        message: What is wrong.
    """

    def __init__(self, path: str, line: int, field: str, message: str) -> None:
        place = f"{path}:{line}" if line else path
        super().__init__(f"{place}: {field + ': ' if field else ''}{message}")
        self.path = path
        self.line = line
        self.field = field
        self.message = message


class SchedulerStalled(SimulationError, RuntimeError):
    """The scheduler says it has work, plans nothing, and nothing more will arrive.

    Attributes:
        time_s: When, on the simulated clock.
        live: Requests it still held.
    """

    def __init__(self, time_s: float, live: int) -> None:
        super().__init__(
            f"at {time_s:.6f} s the scheduler holds {live} requests, plans nothing, and nothing will arrive"
        )
        self.time_s = time_s
        self.live = live


class SchedulerFault(SimulationError, RuntimeError):
    """The scheduler broke its protocol, so that no figure of the run can be trusted.

    Attributes:
        request_id: The request it went wrong for, empty where it was none.
    """

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(f"request {request_id!r}: {message}" if request_id else message)
        self.request_id = request_id


class PlottingUnavailable(SimulationError, ImportError):
    """Pictures need matplotlib, which is not installed."""

    def __init__(self) -> None:
        super().__init__("pictures need matplotlib: pip install 'llm-stack-scheduler[plot]'")
