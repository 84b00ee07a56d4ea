"""Owns the core's own process: its main loop and its end; knows nothing of how the core steps.

Started as `python -m llm_engine.core.core_process FOLDER GENERATION`, with the options and the host's orders
as a line of JSON each on standard input. Standard input then stays open for the life of the host: its end
tells that the host is gone, however it went, and the process ends too. SIGINT and SIGTERM are left to the
host, which says `Shutdown`. Front ends come and go.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from llm_engine.core.core_door import CoreDoor
from llm_engine.core.core_state import CoreOrders
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import (
    Abort,
    AddRequest,
    CoreFailed,
    ModelFound,
    Shutdown,
    StatsReply,
    StatsRequest,
)
from llm_engine.core.pooling_core import start_pooling_core
from llm_engine.core.readmission import Readmission
from llm_engine.core.startup import one_line, start_core
from llm_engine.core.step_journal import StepJournal, journal_path
from llm_engine.core.suspicion import SuspectWard
from llm_engine.errors import StartupError
from llm_engine.options import EngineOptions
from llm_engine.start_profile import StartRecorder, now_s

_NOTHING_RAN_WAIT_MS = 2
_FIRST_IDLE_MS = 300  # requests that wait for the start come first


def serve(core: EngineCore, door: CoreDoor, journal: StepJournal, orders: CoreOrders) -> None:
    """Run the core until `Shutdown`: blocked on the socket when idle, never when there is work."""
    core.watch_plans(journal.planned)
    requests = Readmission(core, journal, SuspectWard(orders))
    wait_ms: int | None = _FIRST_IDLE_MS
    while True:
        for message in door.receive(wait_ms):
            match message:
                case AddRequest():
                    requests.add(message)
                case Abort():
                    requests.abort(message)
                case StatsRequest():
                    stats = core.stats(check_cache=message.check_cache)
                    door.send(StatsReply(message.token, stats, message.front))
                case Shutdown():
                    return
        wait_ms = None
        if core.has_work() or requests.is_waiting:
            outputs = requests.take(core.step())
            if outputs.rows or outputs.refusals:
                door.send(outputs)
            wait_ms = 0 if core.made_progress else _NOTHING_RAN_WAIT_MS
        elif core.use_idle_time():
            wait_ms = 0


def main(arguments: list[str]) -> int:
    """Run a core; returns the exit code, non-zero after a fault."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s core: %(message)s")
    recorder = StartRecorder()
    recorder.add_process(now_s())
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineOptions)
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=CoreOrders)
    threading.Thread(target=_exit_with_host, daemon=True, name="host-watch").start()
    folder, generation = Path(arguments[0]), int(arguments[1])
    door = CoreDoor(folder, generation)
    try:
        pooling = start_pooling_core(options, lambda path: door.send(ModelFound(tokenizer_path=path)))
        if pooling is not None:
            door.send(pooling.ready)
            pooling.serve(door)
            return 0
        core = start_core(options, lambda _, path: door.send(ModelFound(tokenizer_path=path)), recorder)
        journal = StepJournal(journal_path(folder, generation))
        door.send(core.info)
        serve(core, door, journal, orders)
        core.shutdown()
    except StartupError as error:
        door.send(CoreFailed(error.reason, error.message))
        return 1
    except Exception as error:
        door.send(CoreFailed(type(error).__name__, one_line(error)))
        raise
    finally:
        door.close()
    return 0


def _exit_with_host() -> None:
    """Wait for the end of standard input, then end this process, whatever it is doing.

    Reads the descriptor: a thread inside the buffered reader would hold its lock when the interpreter ends.
    """
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
