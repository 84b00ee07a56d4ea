"""One gRPC call up to its status: key, limits, deadline, request id, metrics. Knows no method.

The same objects guard the HTTP routes; only the carriers differ: metadata for headers, statuses for errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
from prometheus_client import Counter

from llm_stack_server.context import Context
from llm_stack_server.engine_metrics import PREFIX
from llm_stack_server.errors import ApiError, DeadlineExceeded, SlowReader
from llm_stack_server.grpc_api.statuses import code_of, trailers_of
from llm_stack_server.grpc_api.unknown_fields import refuse_unknown_fields
from llm_stack_server.http_errors import log_fault, to_api_error
from llm_stack_server.keys import ApiKey, KeyRing
from llm_stack_server.observing.record import UNMATCHED, RequestRecord
from llm_stack_server.usage_limits import Permit

Message = Any  # protobuf has no types
Rpc = Any  # nor has grpc
Metadata = Sequence[tuple[str, str | bytes]]
_METHOD = "gRPC"  # where records have the HTTP method


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was let in.

    Attributes:
        rpc: The call as grpc has it.
        context: The application's state.
        permit: What the key may do.
        key: The key's digest, "" where the server has none.
        record: What is noted of the call.
    """

    rpc: Rpc
    context: Context
    permit: Permit
    key: str
    record: RequestRecord

    async def write(self, message: Message) -> None:
        """Send a message of a stream; waits while the client does not read.

        Raises:
            SlowReader: the client has read nothing for too long.
        """
        self.record.is_stream = True
        self.record.bytes_sent += message.ByteSize()
        limit_s = self.context.settings.stream_stall_s
        try:
            async with asyncio.timeout(limit_s) as timeout:
                await self.rpc.write(message)
        except TimeoutError:
            if not timeout.expired():
                raise
            self.context.metrics.cut_off.labels("slow_reader").inc()
            raise SlowReader(f"the client read nothing for {limit_s:g} s") from None


Work = Callable[[Message, Call], Awaitable[Message | None]]
Handler = Callable[[Message, Rpc], Awaitable[Message | None]]


class Guard:
    """Lets calls in, one application's. Every call ends in exactly one status, which is counted."""

    def __init__(self, context: Context, paths: Collection[str]) -> None:
        """Guard the methods of ``paths``, such as ``/service/Method``."""
        self._context = context
        self._paths = paths
        self._calls = Counter(
            f"{PREFIX}_grpc_requests",
            "gRPC calls that ended, by method and status.",
            ["method", "code"],
            registry=context.metrics.registry,
        )

    def handler(self, method: str, work: Work) -> Handler:
        """``work`` behind all guards, as grpc calls it."""

        async def handle(request: Message, rpc: Rpc) -> Message | None:
            record = self._begin(method, rpc.invocation_metadata() or ())
            code = "CANCELLED"  # where the client leaves, the task is cancelled
            try:
                async with self._entered(rpc, record) as call:
                    if self._context.settings.strict:
                        refuse_unknown_fields(request)
                    answer = await work(request, call)
                code = "OK"
                if answer is not None:
                    record.bytes_sent += answer.ByteSize()
                return answer
            except asyncio.CancelledError:
                record.client_left = True
                raise
            except Exception as error:  # noqa: BLE001 -- told to the client as a status, and logged
                log_fault(error)
                fault = to_api_error(_as_api_error(error))
                status = code_of(fault)
                code = status.name
                record.fail(fault)
                await rpc.abort(status, fault.message, trailers_of(fault))
                return None  # `abort` raises
            finally:
                self._end(method, code, record)

        return handle

    def note_refusal(self, path: str, metadata: Metadata, error: ApiError) -> None:
        """A call to ``path`` was refused before its message was read."""
        method = path.rpartition("/")[2] if path in self._paths else UNMATCHED
        record = self._begin(method, metadata)
        record.fail(error)
        self._end(method, code_of(error).name, record)

    def _begin(self, method: str, metadata: Metadata) -> RequestRecord:
        headers = [(name.encode(), _bytes(value)) for name, value in metadata]
        record = self._context.journal.begin(_METHOD, headers)
        record.route = method if method == UNMATCHED else f"grpc:{method}"
        return record

    def _end(self, method: str, code: str, record: RequestRecord) -> None:
        self._calls.labels(method, code).inc()
        record.status = code
        self._context.journal.end(record)

    @asynccontextmanager
    async def _entered(self, rpc: Rpc, record: RequestRecord) -> Any:  # noqa: ANN401 -- an async generator of `Call`
        context = self._context
        await rpc.send_initial_metadata((("x-request-id", record.request_id),))
        context.lifecycle.enter()
        try:
            context.lifecycle.require_engine()
            key = key_of(context.keys, rpc.invocation_metadata() or ())
            record.key_name = None if key is None else key.name
            permit = context.usage.permit(key)
            await permit.begin()
            limit_s = self._limit_s(rpc)
            try:
                async with asyncio.timeout(limit_s) as timeout:
                    yield Call(rpc, context, permit, "" if key is None else key.digest.hex(), record)
            except TimeoutError:
                if not timeout.expired() or limit_s is None:
                    raise
                context.metrics.cut_off.labels("deadline").inc()
                raise DeadlineExceeded(limit_s) from None
        finally:
            context.lifecycle.leave()

    def _limit_s(self, rpc: Rpc) -> float | None:
        """Seconds that the call may take: the client's deadline, or the server's where that is sooner."""
        limits = [self._context.settings.max_request_s or None, rpc.time_remaining()]
        return min((limit for limit in limits if limit is not None), default=None)


def key_of(keys: KeyRing, metadata: Metadata) -> ApiKey | None:
    """The key that a call came with, as ``authorization: Bearer KEY`` or ``x-api-key: KEY``.

    Raises:
        ApiError: 401: the server has keys, and this is none of them.
    """
    if not len(keys):
        return None
    found = {name: _bytes(value) for name, value in metadata}
    scheme, _, token = found.get("authorization", b"").partition(b" ")
    bearer = token.strip() if scheme.lower() == b"bearer" else b""
    key = keys.find((bearer, found.get("x-api-key", b"")))
    if key is None:
        raise ApiError(
            401,
            "missing or wrong API key; send it as metadata 'authorization: Bearer KEY' or 'x-api-key: KEY'",
            error_type="authentication_error",
            code="invalid_api_key",
        )
    return key


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without a key before their message is read. Guards reflection too; health is open."""

    def __init__(
        self,
        keys: KeyRing,
        open_services: frozenset[str],
        on_refused: Callable[[str, Metadata, ApiError], None],
    ) -> None:
        self._keys = keys
        self._open = open_services
        self._on_refused = on_refused

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:  # noqa: ANN401
        """The method's handler, or one that refuses."""
        service = details.method.rpartition("/")[0].lstrip("/")
        if service in self._open:
            return await continuation(details)
        metadata = details.invocation_metadata or ()
        try:
            key_of(self._keys, metadata)
        except ApiError as error:
            self._on_refused(details.method, metadata, error)
            return _refusal(error)
        return await continuation(details)


def _refusal(error: ApiError) -> Any:  # noqa: ANN401 -- grpc has no types
    async def refuse(_requests: object, rpc: Rpc) -> None:
        await rpc.abort(code_of(error), error.message, trailers_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _as_api_error(error: Exception) -> Exception:
    if isinstance(error, SlowReader):
        return ApiError(408, str(error), error_type="timeout_error", code="slow_reader")
    return error


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
