"""Fields of gRPC messages that the server's contract does not have. Knows no method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

from llm_stack_server.errors import ApiError

_MAX_NAMED_FIELDS = 32


def refuse_unknown_fields(message: Any) -> None:  # noqa: ANN401 -- protobuf has no types
    """Refuse a message that holds unknown fields, at any depth.

    Raises:
        ApiError: 400, naming their places and numbers; the wire has no names.
    """
    places = list(_places(message, ""))
    if places:
        shown = ", ".join(places[:_MAX_NAMED_FIELDS])
        raise ApiError(
            400,
            f"unknown fields, which this server refuses (--strict): {shown}",
            param=places[0],
            code="unknown_parameter",
        )


def _places(message: Any, path: str) -> Iterator[str]:  # noqa: ANN401 -- protobuf has no types
    for field in UnknownFieldSet(message):
        yield f"{path}#{field.field_number}"
    for descriptor, value in message.ListFields():
        kind = descriptor.message_type
        if kind is None or kind.GetOptions().map_entry:
            continue
        if descriptor.is_repeated:
            for index, item in enumerate(value):
                yield from _places(item, f"{path}{descriptor.name}[{index}].")
        else:
            yield from _places(value, f"{path}{descriptor.name}.")
