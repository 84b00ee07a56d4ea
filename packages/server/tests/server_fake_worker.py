"""A worker without HTTP, run as a program: says what a real one says, and ends as its argument tells."""

import json
import os
import socket
import sys
import threading
from pathlib import Path

import msgspec

mode, folder = sys.argv[1], Path(sys.argv[2])
boot = json.loads(sys.stdin.buffer.readline())
number = boot["number"]
control = socket.socket(fileno=boot["control"])
with (folder / f"pids-{number}").open("a") as pids:
    pids.write(f"{os.getpid()}\n")


def say(message: dict[str, object]) -> None:
    data = msgspec.msgpack.encode(message)
    control.sendall(len(data).to_bytes(4, "little") + data)


def exit_with_supervisor() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = control.recv(count - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


threading.Thread(target=exit_with_supervisor, daemon=True).start()
if mode == "dies":
    sys.exit(3)
if mode == "cannot":
    sys.exit(78)
if mode != "mute":
    say({"type": "Measured", "families": [["hits", "h", "counter", [["hits_total", {}, 2.0]]]]})
    say({"type": "Serving", "model_names": ["fake"], "max_model_len": 8})
drains = 0
while True:
    frame = msgspec.msgpack.decode(read(int.from_bytes(read(4), "little")))
    if frame["type"] == "Reload":
        (folder / f"reloaded-{number}").touch()
    if frame["type"] == "Drain":
        drains += 1
        if mode != "stubborn" or drains == 2:
            sys.exit(0)
