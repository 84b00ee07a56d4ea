"""What executor and rank processes say to each other, and through which sockets; knows nothing of plans.

One private folder (mode 0700) per executor holds the sockets: two per rank, one for commands and one for
replies, so the order of each rank's messages is kept. A message is one header frame (MessagePack) and the
codec's frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import zmq

from llm_distributed.errors import CodecError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Setup(msgspec.Struct, tag="setup", frozen=True):
    """First command: what to build. `kwargs` travel in the codec's frames."""

    factory: str
    axes: dict[str, int]
    rank: int
    backend: str
    store_path: str
    collective_timeout_s: float


class Step(msgspec.Struct, tag="step", frozen=True):
    """Execute the plan in the codec's frames."""

    sequence: int


class Call(msgspec.Struct, tag="call", frozen=True):
    """Call a method with the arguments in the codec's frames."""

    sequence: int
    method: str


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End after what was sent before."""


Command: TypeAlias = Setup | Step | Call | Stop


class Reply(msgspec.Struct, frozen=True):
    """Answer to the command of that sequence number (0 is the setup).

    Attributes:
        sequence: The command's.
        kind: "value": the codec's frames hold it. "error": the fields below tell it.
        error_type: Name of the exception's class.
        message: Its text.
        reason: The last line of its traceback.
        details: The whole traceback.
    """

    sequence: int
    kind: Literal["value", "error"]
    error_type: str = ""
    message: str = ""
    reason: str = ""
    details: str = ""


_COMMANDS = msgspec.msgpack.Decoder(Command)
_REPLIES = msgspec.msgpack.Decoder(Reply)
_ENCODER = msgspec.msgpack.Encoder()


def command_address(folder: str, rank: int) -> str:
    """Where a rank takes its commands."""
    return f"ipc://{folder}/commands-{rank}"


def reply_address(folder: str, rank: int) -> str:
    """Where a rank sends its replies."""
    return f"ipc://{folder}/replies-{rank}"


def send(socket: zmq.Socket[bytes], header: Command | Reply, frames: Sequence[Buffer] = ()) -> None:
    """Sends a header and the codec's frames as one message."""
    socket.send_multipart([_ENCODER.encode(header), *frames])


def receive_command(socket: zmq.Socket[bytes]) -> tuple[Command, list[memoryview]]:
    """Waits for a command; raises `CodecError` for what is none."""
    header, *frames = socket.recv_multipart(copy=False)
    try:
        return _COMMANDS.decode(header.buffer), [frame.buffer for frame in frames]
    except msgspec.MsgspecError as error:
        raise CodecError(f"cannot read a command: {error}") from error


def receive_reply(socket: zmq.Socket[bytes]) -> tuple[Reply, list[memoryview]]:
    """Takes a reply that is there; raises `CodecError` for what is none."""
    header, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
    try:
        return _REPLIES.decode(header.buffer), [frame.buffer for frame in frames]
    except msgspec.MsgspecError as error:
        raise CodecError(f"cannot read a reply: {error}") from error
