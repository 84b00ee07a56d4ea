"""Errors as gRPC statuses, with the details that clients of any language can read. Knows no single call."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
from google.protobuf import any_pb2  # type: ignore[import-untyped]

from llm_stack_server.errors import ApiError
from llm_stack_server.grpc_api.messages import message_class

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "llm-stack"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Trailers = tuple[tuple[str, str | bytes], ...]


def code_of(error: ApiError) -> grpc.StatusCode:
    """The status that stands for the HTTP status of ``error``."""
    default = grpc.StatusCode.INTERNAL if error.status >= 500 else grpc.StatusCode.INVALID_ARGUMENT
    return _CODES.get(error.status, default)


def trailers_of(error: ApiError) -> Trailers:
    """The details: reason and field, and when to try again where that is known."""
    details = [_info(error)]
    if error.param is not None and error.status == 400:
        bad_request = message_class("BadRequest", "google.rpc")()
        bad_request.field_violations.add(field=error.param, description=error.message)
        details.append(bad_request)
    trailers: list[tuple[str, str | bytes]] = []
    retry_after = error.headers.get("retry-after")
    if retry_after is not None:
        retry = message_class("RetryInfo", "google.rpc")()
        retry.retry_delay.seconds = int(retry_after)
        details.append(retry)
        trailers.append(("retry-after", retry_after))
    status = message_class("Status", "google.rpc")(code=code_of(error).value[0], message=error.message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        # Of our pool, not of the default one that `any_pb2` belongs to.
        status.details.add(type_url=packed.type_url, value=packed.value)
    trailers.append((DETAILS_KEY, status.SerializeToString()))
    return tuple(trailers)


def _info(error: ApiError) -> object:
    metadata = {} if error.param is None else {"field": error.param}
    reason = error.code or error.error_type
    return message_class("ErrorInfo", "google.rpc")(reason=reason, domain=DOMAIN, metadata=metadata)
