"""The gRPC server: its socket, TLS, services, start and stop. Knows nothing of what the calls do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

from llm_stack_server.context import Context
from llm_stack_server.errors import StartupError
from llm_stack_server.grpc_api import asking, generating, health
from llm_stack_server.grpc_api.calls import Guard, KeyInterceptor, Work
from llm_stack_server.grpc_api.messages import POOL, SERVICE, message_class
from llm_stack_server.settings import ServerSettings

_UNARY: Mapping[str, Work] = {
    "Generate": generating.generate,
    "Embed": asking.embed,
    "Tokenize": asking.tokenize,
    "Detokenize": asking.detokenize,
    "ModelInfo": asking.model_info,
}
_STREAM = "GenerateStream"
_METADATA_BYTES = 64 * 1024  # as much as an HTTP request's head may have


class GrpcServer:
    """Serves one application's engine. Belongs to the event loop in which it is made."""

    def __init__(self, context: Context) -> None:
        """Bind the port of ``context.settings``.

        Raises:
            StartupError: the port is taken, or a TLS file cannot be read.
        """
        settings = context.settings
        guard = Guard(context, frozenset(f"/{SERVICE}/{name}" for name in (*_UNARY, _STREAM)))
        open_services = frozenset({health.SERVICE_NAME})
        self._server = grpc.aio.server(
            interceptors=[KeyInterceptor(context.keys, open_services, guard.note_refusal)],
            options=[
                ("grpc.so_reuseport", 0),  # or a second server would take half of the calls unnoticed
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _METADATA_BYTES),
            ],
        )
        self._server.add_generic_rpc_handlers((_engine_handlers(guard),))
        services = frozenset({SERVICE})
        self._server.add_generic_rpc_handlers((health.Health(context.lifecycle, services).handlers(),))
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=_reflected())
        self._certificate = None if settings.tls_cert is None else _Certificate(settings)
        self.address = self._bind(settings)

    def _bind(self, settings: ServerSettings) -> str:
        assert settings.grpc_port is not None
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        wanted = f"{host}:{settings.grpc_port}"
        try:
            if self._certificate is None:
                port = self._server.add_insecure_port(wanted)
            else:
                port = self._server.add_secure_port(wanted, self._certificate.credentials())
        except RuntimeError as error:
            raise StartupError(f"grpc_port: cannot listen on {wanted}: {error}") from None
        return f"{host}:{port}"

    async def start(self) -> None:
        """Take calls."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; end those that run after ``grace_s``."""
        await self._server.stop(grace_s)

    def reload(self) -> None:
        """Read the certificate again, for new connections.

        Raises:
            StartupError: a file cannot be read; all stays as it was.
        """
        if self._certificate is not None:
            self._certificate.reload()


class _Certificate:
    """The files of the TLS options as grpc wants them. `tls.Tls` has checked that they fit together."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._configuration = self._read()
        self._is_new = False

    def credentials(self) -> Any:  # noqa: ANN401 -- grpc has no types
        """Credentials that ask for the newest certificate at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, self._newest, self._settings.tls_client_ca is not None
        )

    def reload(self) -> None:
        """Read the files again."""
        self._configuration = self._read()
        self._is_new = True

    def _newest(self) -> Any:  # noqa: ANN401 -- grpc has no types
        """Called by grpc; None where nothing has changed."""
        if not self._is_new:
            return None
        self._is_new = False
        return self._configuration

    def _read(self) -> Any:  # noqa: ANN401 -- grpc has no types
        settings = self._settings
        assert settings.tls_cert is not None
        try:
            chain = Path(settings.tls_cert).read_bytes()
            key = Path(settings.tls_key).read_bytes() if settings.tls_key is not None else chain
            ca = Path(settings.tls_client_ca).read_bytes() if settings.tls_client_ca is not None else None
        except OSError as error:
            raise StartupError(f"tls_cert: {error}") from None
        return grpc.ssl_server_certificate_configuration([(key, chain)], ca)


def _engine_handlers(guard: Guard) -> Any:  # noqa: ANN401 -- grpc has no types
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            guard.handler(name, work),
            request_deserializer=message_class(f"{name}Request").FromString,
            response_serializer=message_class(_response(name)).SerializeToString,
        )
        for name, work in _UNARY.items()
    }
    methods[_STREAM] = grpc.unary_stream_rpc_method_handler(
        guard.handler(_STREAM, generating.generate_stream),
        request_deserializer=message_class("GenerateRequest").FromString,
        response_serializer=message_class("GenerateEvent").SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _response(method: str) -> str:
    name: str = POOL.FindServiceByName(SERVICE).FindMethodByName(method).output_type.name
    return name


def _reflected() -> Any:  # noqa: ANN401 -- protobuf has no types
    """All descriptors that reflection tells of."""
    for module in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return POOL
