"""The supervisor with workers that only say what real ones say: deaths, back-off, giving up, signals."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from llm_engine import CoreState, EngineOptions
from llm_engine.errors import StartupError as EngineStartupError
from llm_stack_server.errors import StartupError
from llm_stack_server.listening import listen
from llm_stack_server.settings import ServerSettings
from llm_stack_server.supervisor.supervisor import Supervisor

FAKE_WORKER = str(Path(__file__).with_name("server_fake_worker.py"))


class Host:
    """An engine that is ready at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = CoreState(phase="running", generation=1)
        self.ended = False
        self.fails = False
        self._dead = asyncio.Event()

    async def begin(self):
        pass

    async def wait_ready(self):
        if self.fails:
            raise EngineStartupError("NoModel", "there is no such model")

    async def wait_dead(self):
        await self._dead.wait()

    async def shutdown(self):
        self.ended = True

    def die(self):
        self.state = CoreState(phase="dead", generation=1, reason="it broke")
        self._dead.set()


class Run:
    """A supervisor that runs."""

    def __init__(self, folder, mode, **options):
        self.folder = folder
        self.host = Host(folder)
        self.listener = listen("127.0.0.1", 0)
        settings = ServerSettings(**({"api_workers": 2} | options.pop("settings", {})))
        self.supervisor = Supervisor(
            settings,
            EngineOptions(model="smollm2"),
            self.listener,
            "http://test",
            host=self.host,
            command=(sys.executable, FAKE_WORKER, mode, str(folder)),
            **options,
        )
        self.task = None

    def start(self):
        self.task = asyncio.create_task(self.supervisor.run())

    def pids(self, number):
        file = self.folder / f"pids-{number}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def until(self, condition, limit_s=60):
        async with asyncio.timeout(limit_s):
            while not condition():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.02)

    async def end(self):
        return await asyncio.wait_for(self.task, 60)


@pytest.fixture
async def make_run(tmp_path):
    runs = []

    def make(mode, **options):
        runs.append(Run(tmp_path, mode, **options))
        return runs[-1]

    yield make
    for run in runs:
        if run.task is not None:
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
        run.listener.close()
        wait_gone([pid for number in range(2) for pid in run.pids(number)])


def wait_gone(pids):
    """A killed process may take a moment to go."""
    end_s = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_worker_is_started_again_and_the_others_stay(make_run, capsys):
    run = make_run("serves")
    run.start()
    told = []
    await run.until(lambda: told.append(capsys.readouterr().err) or "ready: fake" in "".join(told))
    for expected in (2, 3):
        os.kill(run.pids(0)[-1], signal.SIGKILL)
        await run.until(lambda expected=expected: len(run.pids(0)) == expected)
    assert len(run.pids(1)) == 1
    told = "".join([*told, capsys.readouterr().err])
    assert told.count("ready: fake") == 1
    assert "was ended by SIGKILL; it is started again in 0 s" in told
    assert "was ended by SIGKILL; it is started again in 0.5 s" in told
    run.supervisor.reload()
    await run.until(lambda: all((run.folder / f"reloaded-{number}").exists() for number in range(2)))
    run.supervisor.stop()
    assert await run.end() == 0
    assert run.host.ended
    assert len(run.pids(0)) == 3  # one that drains is not started again


async def test_workers_that_keep_dying_end_the_server(make_run, capsys):
    run = make_run("dies", settings={"max_worker_deaths": 3})
    run.start()
    assert await run.end() == 1
    assert run.host.ended
    assert 3 <= len(run.pids(0)) + len(run.pids(1)) <= 4
    assert "ended with exit code 3; 3 have died: giving up" in capsys.readouterr().err


async def test_a_wrong_option_is_not_tried_again(make_run):
    run = make_run("cannot")
    run.start()
    assert await run.end() == 1
    assert len(run.pids(0)) <= 1
    assert len(run.pids(1)) <= 1


async def test_a_worker_without_signs_of_life_is_ended(make_run, capsys):
    run = make_run("mute", settings={"max_worker_deaths": 1}, first_sign_s=1.0)
    run.start()
    assert await run.end() == 1
    assert "gives no sign of life" in capsys.readouterr().err


async def test_a_second_signal_ends_at_once(make_run):
    run = make_run("stubborn", settings={"drain_timeout_s": 600.0})
    run.start()
    await run.until(lambda: len(run.supervisor._serving) == 2)
    run.supervisor.stop()
    await asyncio.sleep(0.3)
    assert not run.task.done()
    run.supervisor.stop()
    assert await run.end() == 0


async def test_the_end_of_the_engine_ends_the_server(make_run, capsys):
    run = make_run("serves")
    run.start()
    await run.until(lambda: len(run.supervisor._serving) == 2)
    run.host.die()
    await asyncio.sleep(0.6)
    assert not run.task.done()  # clients are told for a moment
    run.supervisor.stop()
    assert await run.end() == 1
    assert "it broke; the engine is gone" in capsys.readouterr().err


async def test_an_engine_that_cannot_start(make_run, capsys):
    run = make_run("serves")
    run.host.fails = True
    run.start()
    assert await run.end() == 1
    assert "there is no such model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"api_workers": 0}, "api_workers: must be at least 1"),
        ({"api_workers": 65}, "api_workers: must be at most 64"),
        ({"max_worker_deaths": 0}, "max_worker_deaths: must be at least 1"),
        ({"api_workers": 2, "grpc_port": 0}, "grpc_port: gRPC is spoken by one process"),
        ({"api_workers": 2, "max_connections": 1}, "max_connections: must be at least api_workers"),
        ({"api_workers": 2, "max_total_body_bytes": 2**24 - 1}, "max_total_body_bytes: .* at least 16777216"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(StartupError, match=said):
        ServerSettings(**options)


def test_what_each_counts_for_itself_is_shared_out():
    settings = ServerSettings(api_workers=3, max_connections=10, max_total_body_bytes=2**25).share()
    assert (settings.max_connections, settings.max_total_body_bytes) == (3, 2**25 // 3)
    assert ServerSettings(max_connections=10).share() == ServerSettings(max_connections=10)
