"""The health service of gRPC, from the server's state at the time of asking. Knows no single call."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from llm_stack_server.grpc_api.calls import Message, Rpc
from llm_stack_server.lifecycle import Lifecycle

SERVICE_NAME = "grpc.health.v1.Health"
_POLL_S = 0.25
_RESPONSE = health_pb2.HealthCheckResponse


class Health:
    """Serving while new work is taken: the same truth as ``/health/ready`` tells."""

    def __init__(self, lifecycle: Lifecycle, services: frozenset[str]) -> None:
        """Tell of ``services``, and of "" which stands for the server."""
        self._lifecycle = lifecycle
        self._services = services | {""}

    def handlers(self) -> Any:  # noqa: ANN401 -- grpc has no types
        """The service's methods."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=_RESPONSE.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=_RESPONSE.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def _status(self) -> int:
        is_serving = self._lifecycle.fault() is None
        status: int = _RESPONSE.SERVING if is_serving else _RESPONSE.NOT_SERVING
        return status

    async def _check(self, request: Message, rpc: Rpc) -> Message:
        if request.service not in self._services:
            await rpc.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service[:100]!r}")
        return _RESPONSE(status=self._status())

    async def _watch(self, request: Message, rpc: Rpc) -> None:
        """The status now and whenever it changes, until the client leaves."""
        if request.service not in self._services:
            await rpc.write(_RESPONSE(status=_RESPONSE.SERVICE_UNKNOWN))  # it stays unknown
            await asyncio.get_running_loop().create_future()
        told: int | None = None
        while True:
            status = self._status()
            if status != told:
                await rpc.write(_RESPONSE(status=status))
                told = status
            await asyncio.sleep(_POLL_S)
