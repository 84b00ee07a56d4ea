"""The server's own exceptions. Knows nothing of HTTP frameworks or of the engine."""

from __future__ import annotations

from collections.abc import Mapping


class ServerError(Exception):
    """Base of every error that this package raises."""


class StartupError(ServerError):
    """The server cannot start: a taken port, an empty key, a bad option. One line for the user."""


class ClientDisconnected(ServerError):
    """The client closed its connection before the answer was complete."""


class ApiError(ServerError):
    """An answer other than 2xx, in OpenAI's terms.

    Attributes:
        status: HTTP status code.
        message: What is wrong, for a person.
        error_type: OpenAI's ``type``, such as ``invalid_request_error``.
        param: The field at fault, as the client spelled it, or None.
        code: A stable short name of the fault, or None.
        headers: Further response headers, such as ``retry-after``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON body: ``{"error": {"message", "type", "param", "code"}}``."""
        return {
            "error": {
                "message": self.message,
                "type": self.error_type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidField(ApiError):
    """400: a field of the request is wrong."""

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(400, message, param=param, code=code)


class UnsupportedField(ApiError):
    """400: a known field that this server cannot honour."""

    def __init__(self, param: str, message: str | None = None) -> None:
        super().__init__(
            400,
            message or f"{param} is not supported by this server",
            param=param,
            code="unsupported_parameter",
        )


class Unavailable(ApiError):
    """503: not ready, draining, or the engine is gone."""

    def __init__(self, message: str, *, code: str = "unavailable", retry_after_s: int | None = None) -> None:
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        super().__init__(503, message, error_type="server_error", code=code, headers=headers)


class Overloaded(ApiError):
    """429: more than the server, or this client's share of it, can take now."""

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(
            429,
            f"{message}; retry after {retry_after_s} s",
            error_type="rate_limit_error",
            code=code,
            headers={"retry-after": str(retry_after_s)},
        )


class DeadlineExceeded(ApiError):
    """504: the request was not done within the time that its client or the server set."""

    CODE = "deadline_exceeded"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            504,
            f"the request was not done within {limit_s:g} s and was ended",
            error_type="timeout_error",
            code=self.CODE,
        )


class BodyTooSlow(ApiError):
    """408: the body did not arrive in time."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            408,
            f"the request body did not arrive within {limit_s:g} s",
            code="request_timeout",
            headers={"connection": "close"},
        )


class BodiesTooLarge(Unavailable):
    """503: the bodies of all requests together take as much memory as they may."""

    def __init__(self) -> None:
        super().__init__(
            "the server holds as many bytes of requests as it may; retry after 1 s",
            code="too_many_body_bytes",
            retry_after_s=1,
        )
        self.headers["connection"] = "close"


class SlowReader(ServerError):
    """The client does not read its stream: what is kept for it has reached a limit."""


class BodyTooLarge(ApiError):
    """413: the body is larger than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            413,
            f"the request body is larger than the limit of {limit_bytes} bytes",
            code="request_too_large",
            headers={"connection": "close"},
        )
