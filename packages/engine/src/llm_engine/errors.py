"""Owns the exceptions of the engine; knows nothing of HTTP statuses or of who catches them."""

from collections.abc import Sequence


class EngineError(Exception):
    """Base of every error the engine raises on purpose.

    Attributes:
        code: A stable, machine-readable name of the kind of error.
    """

    code = "engine_error"


class InvalidRequest(EngineError):
    """A request was refused before it was queued; nothing was changed.

    Attributes:
        field: The name of the offending field, as in `SamplingParams` (or "prompt", "messages").
        message: What is wrong and which values are accepted.
    """

    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class UnsupportedTask(InvalidRequest):
    """The model does not do what was asked; the message names what to call.

    Attributes:
        task: What was asked, as the method is called.
    """

    code = "unsupported_task"

    def __init__(self, task: str, message: str) -> None:
        super().__init__("model", f"cannot {task}: {message}")
        self.task = task


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt and `max_tokens` together, do not fit into the model's context."""

    code = "context_length_exceeded"


class InvalidOption(EngineError):
    """An engine option has a value outside its accepted range.

    Attributes:
        field: The name of the option, as in `EngineOptions`.
        message: What is wrong and which values are accepted.
    """

    code = "invalid_option"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class EngineBusy(EngineError):
    """The queue is full; the request was not accepted.

    Attributes:
        retry_after_s: After how many seconds another attempt makes sense.
    """

    code = "engine_busy"

    def __init__(self, retry_after_s: float, message: str = "the engine's queue is full") -> None:
        super().__init__(f"{message}; retry after {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class EngineRestarting(EngineBusy):
    """The engine core has died and is being started again; what was asked cannot wait for that."""

    code = "engine_restarting"

    def __init__(self, retry_after_s: float, message: str = "the engine core is being restarted") -> None:
        super().__init__(retry_after_s, message)


class EngineDead(EngineError):
    """The engine core has ended (crashed, killed or shut down); no request can be served."""

    code = "engine_dead"


class StartupError(EngineError):
    """The engine could not start.

    Attributes:
        reason: The name of the cause's type, e.g. "ModelNotFound" or "UnknownArchitecture".
    """

    code = "startup_failed"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class RequestFailed(EngineError):
    """A request that was accepted ended with an error; other requests are not concerned.

    Attributes:
        request_id: The request.
        message: What went wrong.
        outputs: From `LLM`, the outputs (`RequestOutput`) of the whole batch, failed ones included.
    """

    code = "request_failed"

    def __init__(self, message: str, request_id: str = "", outputs: Sequence[object] = ()) -> None:
        super().__init__(f"request {request_id}: {message}" if request_id else message)
        self.request_id = request_id
        self.message = message
        self.outputs = outputs


class ProtocolError(EngineError):
    """A message between the front end and the core could not be decoded."""

    code = "protocol_error"
