"""The exceptions of the scheduler library; knows nothing of what raises them."""

from __future__ import annotations

from collections.abc import Sequence


class SchedulerError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidConfig(SchedulerError, ValueError):
    """A setting is outside its accepted range.

    Attributes:
        field: Name of the setting.
        value: The value that was refused.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field}={value!r}: expected {accepted}")
        self.field = field
        self.value = value


class InvalidRequest(SchedulerError, ValueError):
    """A request is malformed; nothing was queued.

    Attributes:
        field: Name of the request's field at fault.
        message: What is wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class DuplicateRequest(SchedulerError, ValueError):
    """A live request has the same id; nothing was queued.

    Attributes:
        request_id: The id in question.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is still live")
        self.request_id = request_id


class NeverFits(SchedulerError):
    """The request could not run even alone in an empty cache; nothing was queued.

    Attributes:
        needed_blocks: Blocks the request would need at its longest.
        num_blocks: Blocks the cache has.
    """

    def __init__(self, needed_blocks: int, num_blocks: int) -> None:
        super().__init__(
            f"the request needs up to {needed_blocks} cache blocks, the cache has {num_blocks}: "
            "shorten the prompt or lower max_tokens"
        )
        self.needed_blocks = needed_blocks
        self.num_blocks = num_blocks


class Busy(SchedulerError):
    """The waiting queue is full; nothing was queued.

    Attributes:
        retry_after_s: Seconds after which room is likely, from the recent rate of finishing requests.
    """

    def __init__(self, retry_after_s: float, reason: str) -> None:
        super().__init__(f"{reason}; retry in about {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class DeadlineUnmet(SchedulerError):
    """The request's deadline cannot be met by the current estimate; nothing was queued.

    Attributes:
        request_id: The request.
        late_s: Seconds by which it would be late.
    """

    def __init__(self, request_id: str, late_s: float) -> None:
        super().__init__(f"request {request_id!r} would end {late_s:.3f} s after its deadline")
        self.request_id = request_id
        self.late_s = late_s


class InvalidResult(SchedulerError, ValueError):
    """A step result does not belong to its plan; the plan is still in flight and may be failed.

    Attributes:
        field: Field of the result at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PlanOrderError(SchedulerError, RuntimeError):
    """``schedule``, ``update`` or ``fail`` was called out of turn; the state is unchanged."""


class SchedulerNotFound(SchedulerError, LookupError):
    """No scheduler is known by this name.

    Attributes:
        name: What was asked for.
        installed: Names that are installed.
    """

    def __init__(self, name: str, installed: Sequence[str], reason: str = "") -> None:
        detail = f" ({reason})" if reason else ""
        super().__init__(f"no scheduler {name!r}{detail}; installed: {', '.join(installed) or 'none'}")
        self.name = name
        self.installed = tuple(installed)


class IncompatibleScheduler(SchedulerError, TypeError):
    """A scheduler class was found, but it does not keep this package's protocol.

    Attributes:
        name: What was asked for.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"scheduler {name!r}: {message}")
        self.name = name
