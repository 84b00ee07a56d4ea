"""A client of the gRPC service over a socket, and what its faults tell."""

from __future__ import annotations

from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from google.protobuf import any_pb2
from grpc_health.v1 import health_pb2_grpc
from llm_stack_server.app import create_app
from llm_stack_server.grpc_api.messages import SERVICE, message_class
from llm_stack_server.grpc_api.server import GrpcServer
from llm_stack_server.settings import ServerSettings


class Client:
    """Calls methods by name, as any client of the .proto does."""

    def __init__(self, channel, app, address):
        self.channel, self.app, self.address = channel, app, address

    def _unary(self, method, answer):
        return self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class(answer).FromString,
        )

    def call(self, method, answer, metadata=(), timeout=10, **fields):
        request = message_class("GenerateRequest" if method == "Generate" else f"{method}Request")(**fields)
        return self._unary(method, answer)(request, metadata=metadata, timeout=timeout)

    def generate(self, **fields):
        return self.call("Generate", "GenerateResponse", **fields)

    def stream(self, metadata=(), timeout=10, **fields):
        method = self.channel.unary_stream(
            f"/{SERVICE}/GenerateStream",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class("GenerateEvent").FromString,
        )
        return method(message_class("GenerateRequest")(**fields), metadata=metadata, timeout=timeout)

    @property
    def health(self):
        return health_pb2_grpc.HealthStub(self.channel)

    async def metrics(self):
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/metrics")).text


@asynccontextmanager
async def serving(engine, **settings):
    app = create_app(ServerSettings(grpc_port=0, **settings), engine)
    server = GrpcServer(app.state.context)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield Client(channel, app, server.address)
    finally:
        await server.stop(0)


async def fault_of(call):
    """Status, field at fault, reason and seconds to wait, as clients of the details read them."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    raw = dict(error.trailing_metadata()).get("grpc-status-details-bin")
    status = message_class("Status", "google.rpc").FromString(raw)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    found = {"code": error.code(), "message": error.details(), "field": None, "retry_s": None}
    for packed in status.details:
        name = packed.type_url.rpartition(".")[2]
        detail = message_class(name, "google.rpc")()
        assert any_pb2.Any(type_url=packed.type_url, value=packed.value).Unpack(detail)
        if name == "BadRequest":
            found["field"] = detail.field_violations[0].field
        elif name == "RetryInfo":
            found["retry_s"] = detail.retry_delay.seconds
        else:
            found["reason"] = detail.reason
    return found
