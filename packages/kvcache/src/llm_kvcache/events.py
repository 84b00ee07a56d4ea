"""Owns the public event log and the wire format; gathers what belongs to events: values, follower.

A cache numbers what happens to its blocks from 0, without holes. A follower (a router, an indexer) applies
batches in order and then knows which blocks the cache holds in which tier. One that missed events is told
so (`EventGap`) and starts again from a snapshot. The *epoch* of a batch tells it that the cache was started
anew.

On the wire a batch is one msgpack value, version `WIRE_VERSION` = 1. `[…]` is an array, `bin` a byte
string, `str` UTF-8, `uint` an integer that is not negative; `x?` is `x` or nil:

    batch    = [version uint (1), epoch uint64, seq uint64, is_snapshot bool, [event …]]
    event    = stored | removed | moved | cleared
    stored   = [0, keys, parent?, tokens, block_size uint32, group uint32, tier str, lora str?,
                has_extra_keys bool]
    removed  = [1, keys, group uint32, tier str]
    moved    = [2, keys, group uint32, from str, to str, is_copy bool]
    cleared  = [3, tier str?]
    keys     = bin, 16 bytes for each block hash, one after the other; at least one
    parent   = bin of 16 bytes
    tokens   = bin, 4 bytes for each token id, little endian; as many as keys times block_size, or none

`seq` numbers the first event, the others follow. A snapshot's events have no numbers: `seq` is that of the
first event after it. `epoch` grows from one life of the cache to the next. Later minor versions may append
elements to any of these arrays, so readers pass over what they do not know; they refuse another version,
another kind of event, and bytes after the batch. Writers use the shortest form of every value, so equal
batches have equal bytes; readers take any form.
"""

import time
from collections.abc import Sequence

from llm_kvcache import _native
from llm_kvcache.errors import InvalidArgument
from llm_kvcache.event_tuples import batch_from_native, event_to_native, uint
from llm_kvcache.event_values import Cleared, Event, EventBatch, Moved, Removed, Stored
from llm_kvcache.follower import Follower

__all__ = [
    "WIRE_VERSION",
    "Cleared",
    "Event",
    "EventBatch",
    "EventLog",
    "Follower",
    "Moved",
    "Removed",
    "Stored",
    "decode",
    "encode",
]

WIRE_VERSION: int = _native.EVENT_WIRE_VERSION
"""Version of the bytes that `encode` makes and `decode` takes."""


def encode(batch: EventBatch) -> bytes:
    """Returns the bytes of a batch.

    Raises:
        InvalidArgument: A field is outside what it may be.
    """
    epoch, seq = uint("epoch", batch.epoch, 64), uint("seq", batch.seq, 64)
    return _native.encode_events(
        epoch, seq, bool(batch.is_snapshot), list(map(event_to_native, batch.events))
    )


def decode(data: bytes) -> EventBatch:
    """Returns the batch that some bytes stand for, checked in full; any bytes may come.

    Raises:
        WireError: They are no batch, or one of another version.
        InvalidArgument: A field of an event is outside what it may be.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument("data", data, "must be bytes")
    return batch_from_native(_native.decode_events(bytes(data)))


class EventLog:
    """The latest events of a cache, for followers to fetch. Threads may share an object: each call is atomic.

    Cost: `push` is O(1) beside the event, `since` and `drain` are linear in what they return.
    """

    def __init__(self, capacity: int, *, epoch: int | None = None) -> None:
        """Makes an empty log.

        Args:
            capacity: Blocks that the kept events may name together (an event without blocks counts as one);
                the latest event is always kept. 0 disables the log: `push` then does nothing. Memory is about
                `capacity * (16 + 4 * block_size)` bytes, plus 300 an event at most.
            epoch: A number that grows from one life of the cache to the next; None for the time in
                nanoseconds.
        """
        life = time.time_ns() if epoch is None else uint("epoch", epoch, 64)
        self._native = _native.Events(uint("capacity", capacity, 63), life)

    @property
    def capacity(self) -> int:
        """Blocks that the kept events may name; 0 where the log is disabled."""
        return self._native.state()[0]

    @property
    def epoch(self) -> int:
        """Which life of the cache this is."""
        return self._native.state()[1]

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest event kept, or of the next one where none is."""
        return self._native.state()[2]

    @property
    def next_seq(self) -> int:
        """Number that the next event will get."""
        return self._native.state()[3]

    def __len__(self) -> int:
        _, _, oldest, following = self._native.state()
        return following - oldest

    def push(self, event: Event) -> None:
        """Appends an event; the oldest ones go where the capacity asks for it.

        Raises:
            InvalidArgument: A field is outside what it may be.
        """
        self._native.push(event_to_native(event))

    def since(self, seq: int, *, limit: int | None = None) -> EventBatch:
        """Returns the first `limit` events from number `seq` on; none where `seq` is the next number.

        Raises:
            EventGap: They are not all here: the follower must start again from a snapshot.
            EventsDisabled: The capacity is 0.
        """
        most = None if limit is None else uint("limit", limit, 63)
        return batch_from_native(self._native.since(uint("seq", seq, 64), most))

    def drain(self) -> EventBatch:
        """Takes all events out, for a log with one follower.

        Raises:
            EventsDisabled: The capacity is 0.
        """
        return batch_from_native(self._native.drain())

    def snapshot(self, events: Sequence[Event]) -> EventBatch:
        """Makes a snapshot of events that rebuild the state as it is now.

        Raises:
            InvalidArgument: A field is outside what it may be.
            EventsDisabled: The capacity is 0.
        """
        return batch_from_native(self._native.snapshot(list(map(event_to_native, events))))
