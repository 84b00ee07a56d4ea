"""Owns the conversion of events to and from the tuples of the native module."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from llm_kvcache.errors import InvalidArgument
from llm_kvcache.event_values import Cleared, Event, EventBatch, Moved, Removed, Stored

RawEvent: TypeAlias = (
    tuple[Literal[0], bytes, bytes | None, bytes, int, int, str, str | None, bool]
    | tuple[Literal[1], bytes, int, str]
    | tuple[Literal[2], bytes, int, str, str, bool]
    | tuple[Literal[3], str | None]
)
"""An event as the native module takes and gives it: the elements of its wire form."""

RawBatch: TypeAlias = tuple[int, int, bool, list[RawEvent]]
"""A batch of the native module: epoch, seq, is_snapshot, events."""


def batch_from_native(raw: RawBatch) -> EventBatch:
    """Returns the batch of the native module's tuple."""
    epoch, seq, is_snapshot, events = raw
    return EventBatch(epoch=epoch, seq=seq, is_snapshot=is_snapshot, events=tuple(map(_from_native, events)))


def _split(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + 16] for at in range(0, len(joined), 16))


def _from_native(raw: RawEvent) -> Event:
    if raw[0] == 0:
        _, keys, parent, tokens, block_size, group, tier, lora, has_extra_keys = raw
        return Stored(
            keys=_split(keys),
            parent=parent,
            token_ids=tuple(np.frombuffer(tokens, dtype="<u4").tolist()),
            block_size=block_size,
            group=group,
            tier=tier,
            lora=lora,
            has_extra_keys=has_extra_keys,
        )
    if raw[0] == 1:
        _, keys, group, tier = raw
        return Removed(keys=_split(keys), group=group, tier=tier)
    if raw[0] == 2:
        _, keys, group, source, to, is_copy = raw
        return Moved(keys=_split(keys), group=group, source=source, to=to, is_copy=is_copy)
    return Cleared(tier=raw[1])


def event_to_native(event: Event) -> RawEvent:
    """Returns an event as the native module takes it.

    Raises:
        InvalidArgument: A field has a wrong type, or does not fit.
    """
    if isinstance(event, Stored):
        return (
            0,
            _join(event.keys),
            None if event.parent is None else _hash("parent", event.parent),
            _tokens(event.token_ids),
            uint("block_size", event.block_size, 32),
            uint("group", event.group, 32),
            _text("tier", event.tier),
            None if event.lora is None else _text("lora", event.lora),
            bool(event.has_extra_keys),
        )
    if isinstance(event, Removed):
        return (1, _join(event.keys), uint("group", event.group, 32), _text("tier", event.tier))
    if isinstance(event, Moved):
        tiers = _text("source", event.source), _text("to", event.to)
        return (2, _join(event.keys), uint("group", event.group, 32), *tiers, bool(event.is_copy))
    if isinstance(event, Cleared):
        return (3, None if event.tier is None else _text("tier", event.tier))
    raise InvalidArgument("event", event, "must be Stored, Removed, Moved or Cleared")


def _hash(name: str, key: bytes) -> bytes:
    if not isinstance(key, bytes) or len(key) != 16:
        raise InvalidArgument(name, key, "must be 16 bytes")
    return key


def _join(keys: Sequence[bytes]) -> bytes:
    return b"".join(_hash("keys", key) for key in keys)


def _tokens(token_ids: Sequence[int]) -> bytes:
    try:
        return np.array(token_ids, dtype="<u4").tobytes()
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgument("token_ids", token_ids, "must be integers from 0 to 2**32 - 1") from error


def uint(name: str, value: int, bits: int) -> int:
    """Returns `value` as an int of `bits` bits.

    Raises:
        InvalidArgument: It is no integer, negative, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= int(value) < 2**bits:
        raise InvalidArgument(name, value, f"must be an integer from 0 to 2**{bits} - 1")
    return int(value)


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(name, value, "must be a str")
    return value
