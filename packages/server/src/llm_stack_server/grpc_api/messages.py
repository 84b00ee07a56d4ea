"""The gRPC messages, made at import from the compiled .proto files. Knows nothing of calls.

Classes come from a descriptor set and not from generated Python, which would demand the protobuf version that
generated it. ``protos/`` holds the sources; a test compares ``descriptors.binpb`` with what protoc makes.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

PACKAGE = "llm_stack.v1"
SERVICE = f"{PACKAGE}.Engine"


def _pool() -> Any:  # noqa: ANN401 -- protobuf has no types
    """All descriptors; a pool of its own, so that no other library's can clash with them."""
    raw = files("llm_stack_server.grpc_api").joinpath("descriptors.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        pool.Add(file)
    return pool


POOL = _pool()


def message_class(name: str, package: str = PACKAGE) -> Any:  # noqa: ANN401 -- protobuf has no types
    """The class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


def given_fields(message: Any) -> dict[str, Any]:  # noqa: ANN401 -- protobuf has no types
    """The fields that a client has set, by name, as the values of a JSON body.

    A field that the .proto does not mark as optional counts as set where it is not its type's zero.
    """
    fields: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        is_message = descriptor.message_type is not None
        if is_message and descriptor.message_type.GetOptions().map_entry:
            fields[descriptor.name] = {str(key): item for key, item in value.items()}
        elif descriptor.is_repeated:
            fields[descriptor.name] = [given_fields(item) if is_message else item for item in value]
        else:
            fields[descriptor.name] = given_fields(value) if is_message else value
    return fields
