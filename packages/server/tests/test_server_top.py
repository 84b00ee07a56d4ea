"""`llm-stack top`: samples and their differences, the frame, servers that come and go, the keyboard."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from llm_engine.core.core_state import CoreState
from llm_engine.stats import EngineStats
from llm_stack_server import engine_metrics
from llm_stack_server.app import create_app
from llm_stack_server.cli import main
from llm_stack_server.cli.top import read_key, show_once
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings
from llm_stack_server.top import figures as figures_module
from llm_stack_server.top.figures import Figures, Watch
from llm_stack_server.top.reader import Reader, Reading
from llm_stack_server.top.samples import NotMetrics, Samples
from llm_stack_server.top.screen import frame, sparkline
from rich.console import Console
from server_thread import serving

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COMMAND = [sys.executable, "-m", "llm_stack_server", "top", "--interval", "0.2"]


def samples(count: float, *buckets: float, name: str = "h", route: str = "a") -> str:
    bounds = zip(("0.1", "1.0", "+Inf"), buckets, strict=True)
    lines = [f'{name}_bucket{{le="{le}",route="{route}"}} {value}' for le, value in bounds]
    return "\n".join([f"c_total {count}", *lines, ""])


def added(before: str, after: str) -> Samples:
    return Samples.parse(after).since(Samples.parse(before))


# Samples


def test_totals_and_groups():
    text = 'a{x="1",y="p"} 2\na{x="2",y="p"} 3\na{x="2",y="q\\"}"} 4\nb 5\n'
    parsed = Samples.parse(text)
    assert parsed.total("a") == 9
    assert parsed.total("a", x="2") == 7
    assert parsed.total("a", x="2", y='q"}') == 4
    assert parsed.total("nothing") is None
    assert parsed.by_label("a", "x") == {"1": 2, "2": 7}
    assert parsed.without("y", re.compile("p|z")).total("a") == 4
    assert parsed.without("y", re.compile("p|z")).total("b") == 5


@pytest.mark.parametrize("text", ["<html>no</html>", "a{", 'a{x="} 1', "a one"])
def test_what_is_no_metrics(text):
    with pytest.raises(NotMetrics):
        Samples.parse(text)


def test_differences_hold_counters_alone():
    steps = added("c_total 5\ng 5\n", 'c_total 9\ng 9\nd_total{x="new"} 2\n')
    assert steps.values == {("c_total", frozenset()): 4, ("d_total", frozenset({("x", "new")})): 2}


def test_quantiles_of_a_difference():
    steps = added(samples(5, 1, 1, 1), samples(9, 1, 5, 5))
    assert steps.total("c_total") == 4
    assert steps.quantile("h", 0.5) == pytest.approx(0.55)
    assert steps.quantile("h", 0.99) == pytest.approx(0.991)
    assert added(samples(5, 1, 1, 1), samples(5, 1, 1, 1)).quantile("h", 0.5) is None
    assert added(samples(0, 0, 0, 0), samples(0, 0, 0, 3)).quantile("h", 0.5) == 1.0
    both = samples(0, 2, 2, 2, route="a") + samples(0, 0, 2, 2, route="b").split("\n", 1)[1]
    assert added(samples(0, 0, 0, 0), both).quantile("h", 0.5) == pytest.approx(0.1)
    assert Samples().quantile("h", 0.5) is None


def test_a_counter_that_went_back_began_anew():
    steps = added(samples(500, 80, 90, 90), samples(2, 0, 2, 2))
    assert steps.total("c_total") == 2
    assert steps.quantile("h", 0.5) == pytest.approx(0.55)
    assert all(value >= 0 for value in steps.values.values())


def test_quantiles_stay_within_what_was_observed():
    """Against the very values, for each bucket's width."""
    values = sorted(math.sin(n) ** 2 for n in range(1, 400))
    bounds = (0.1, 0.25, 0.5, 0.75, 1.0)
    rows = [(str(bound), sum(value <= bound for value in values)) for bound in bounds] + [
        ("+Inf", len(values))
    ]
    text = "".join(f'h_bucket{{le="{le}"}} {count}\n' for le, count in rows)
    for share in (0.1, 0.5, 0.9, 0.99):
        exact = values[math.ceil(share * len(values)) - 1]
        width = next(high - low for low, high in zip((0, *bounds), bounds, strict=False) if exact <= high)
        assert abs(added("", text).quantile("h", share) - exact) <= width


# Figures


def reading(time_s: float, text: str | None, state: str = "ready") -> Reading:
    parsed = None if text is None else Samples.parse(text)
    return Reading(time_s=time_s, state=state, model="m", version="1", samples=parsed)


def tokens(count: int) -> str:
    gauges = "llm_stack_requests_running 2\nllm_stack_queue_waiting 3\n"
    return f"llm_stack_generation_tokens_total {count}\n{gauges}"


def test_rates_are_those_of_the_interval():
    watch = Watch()
    first = watch.take(reading(10, tokens(100)))
    assert (first.interval_s, first.output_rate, first.running, first.waiting) == (None, None, 2, 3)
    assert watch.take(reading(12, tokens(150))).output_rate == 25
    assert watch.take(reading(13, tokens(150))).output_rate == 0
    assert watch.take(reading(14, tokens(30))).output_rate == 30  # a new server


def test_counting_begins_anew_after_an_absence():
    watch = Watch()
    watch.take(reading(10, tokens(100)))
    away = watch.take(reading(11, None, "down"))
    assert (away.output_rate, away.running) == (None, None)
    assert watch.take(reading(90, tokens(5000))).output_rate is None
    back = watch.take(reading(91, tokens(5010)))
    assert back.output_rate == 10
    assert list(back.history["output"]) == [0, 10]


def test_our_prefix():
    assert figures_module.PREFIX == engine_metrics.PREFIX


# The frame


def drawn(shown: Figures, width: int = 100) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(frame(shown, "http://here", width))
    return console.export_text()


async def text_of(client: httpx.AsyncClient, key: str = "") -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return (await client.get("/metrics", headers=headers)).text


async def test_a_frame_of_real_metrics(make_client, engine):
    client = make_client(api_key=("ann k1", "bob k2"))
    watch = Watch()
    watch.take(reading(10, await text_of(client, "k1")))
    for key, count in (("k1", 3), ("k2", 1)):
        for _ in range(count):
            headers = {"authorization": f"Bearer {key}"}
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
    assert (await client.post("/v1/chat/completions", json={}, headers=headers)).status_code == 400
    shown = drawn(watch.take(reading(12, await text_of(client, "k1"))))
    lines = {" ".join(line.strip("│").split()) for line in re.split(r"[\n│]", shown)}
    assert any(line.startswith("● ready m http://here v1") for line in lines)
    assert "in use 30 %" in lines
    assert "■ in use 3 ■ kept 0 ■ free 7" in lines
    assert "200 4 2/s" in lines
    assert "400 1 0.5/s" in lines
    assert "deaths of the core 0" in lines
    assert "ended: stop 4" in lines
    size = len(engine.script.encode()) + 1
    assert any(re.fullmatch(rf"ann 3 \d+ {3 * size}", line) for line in lines)
    assert any(re.fullmatch(rf"bob 2 \d+ {size}", line) for line in lines)
    for name in ("first token", "between tokens", "whole request"):
        assert any(re.fullmatch(rf"{name} [\d.]+ m?s [\d.]+ m?s", line) for line in lines)
    assert "k1" not in shown


@pytest.mark.parametrize("width", [30, 60, 80, 200])
async def test_a_frame_fits_its_terminal(client, width):
    watch = Watch()
    shown = drawn(watch.take(reading(1, await text_of(client))), width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "requests" in shown


def test_a_frame_without_metrics_says_why():
    shown = drawn(Figures(reading=Reading(time_s=0, state="down", detail="connection refused")))
    assert "down" in shown
    assert "connection refused" in shown


def test_names_are_no_markup():
    shown = drawn(Figures(reading=Reading(time_s=0, state="ready", model="[red]x[/red] [link=a]")))
    assert "[red]x[/red] [link=a]" in shown


def test_sparklines():
    assert sparkline([0, 1, 2, 4], 6) == "  ▁▃▅█"
    assert sparkline([9, 0, 0], 2) == "▁▁"
    assert sparkline([], 3) == "   "
    assert sparkline([1], 0) == ""


# Servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_states_of_a_server(engine):
    app = create_app(ServerSettings())
    with serving(app) as url:
        reader = Reader(f"{url}/v1")
        assert reader.read().state == "starting"
        app.state.context.lifecycle.attach(engine)
        ready = reader.read()
        assert (ready.state, ready.model, ready.detail) == ("ready", "double", "")
        assert ready.version
        engine.state = CoreState(
            phase="restarting", generation=1, deaths=1, attempt=1, reason="it was killed"
        )
        restarting = reader.read()
        assert restarting.state == "restarting"
        assert "it was killed" in restarting.detail
        assert restarting.samples.total("llm_stack_core_deaths_total") == 1
        engine.state = CoreState(phase="dead", generation=1, deaths=2)
        assert reader.read().state == "dead"
        app.state.context.lifecycle.begin_drain()
        assert reader.read().state == "draining"
    assert reader.read().state == "down"


def test_a_server_that_goes_and_comes_again(engine):
    port, watch = free_port(), Watch()
    reader = Reader(f"http://127.0.0.1:{port}")
    with serving(create_app(ServerSettings(served_model_name=("one",)), engine), port):
        assert watch.take(reader.read()).reading.model == "one"
    away = watch.take(reader.read())
    assert away.reading.state == "down"
    assert "refused" in away.reading.detail
    with serving(create_app(ServerSettings(served_model_name=("two",)), engine), port):
        back = watch.take(reader.read())
        assert (back.reading.state, back.reading.model, back.output_rate) == ("ready", "two", None)
        assert watch.take(reader.read()).output_rate == 0


def test_keys(engine, tmp_path):
    path = tmp_path / "keys"
    path.write_text("# of the team\nsha256:" + "0" * 64 + "\nann  secret-key\nother\n")
    with serving(create_app(ServerSettings(api_key=("secret-key",)), engine)) as url:
        for key in ("", "wrong"):
            refused = Reader(url, key).read()
            assert (refused.state, refused.samples) == ("refused", None)
            assert "API key" in refused.detail
        assert Reader(url, read_key(str(path))).read().state == "ready"


def test_wrong_options(tmp_path, capsys):
    path = tmp_path / "keys"
    for text, told in (
        ("", "no key"),
        ("# a\n", "no key"),
        ("sha256:00\n", "digest"),
        ("k\x00y\n", "printable"),
    ):
        path.write_text(text)
        with pytest.raises(StartupError, match=told):
            read_key(str(path))
    for flags in (["--url", "ftp://x"], ["--interval", "0"], ["--api-key-file", str(tmp_path / "none")]):
        assert main(["top", "--once", *flags]) == 1
        assert flags[0].strip("-").replace("-", "_") in capsys.readouterr().err


def test_something_else_at_the_port():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>hello</html>"})

    with serving(app) as url:
        other = Reader(url).read()
    assert (other.state, other.samples) == ("down", None)
    assert "Prometheus" in other.detail


def test_once(engine, capsys):
    async def stats() -> EngineStats:
        return EngineStats(running=1, generated_tokens=int(time.monotonic() * 1000))

    engine.stats = stats
    console = Console(record=True, width=100)
    with serving(create_app(ServerSettings(), engine)) as url:
        assert show_once(Reader(url), console, 0.5) == 0
        assert main(["top", "--once", "--url", url, "--interval", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "● ready" in printed
    assert "\x1b" not in printed
    rate = re.search(r"output\s+([\d,]+)", console.export_text())
    assert 500 < float(rate[1].replace(",", "")) < 2000  # a token a millisecond
    assert main(["top", "--once", "--url", url]) == 1
    assert "down" in capsys.readouterr().out


# The terminal


@pytest.mark.parametrize("ending", ["q", "ctrl-c"])
def test_the_live_view_ends_cleanly(engine, ending):
    with serving(create_app(ServerSettings(), engine)) as url:
        controller, terminal = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "--url", url], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )
        os.close(terminal)
        try:
            seen = read_until(controller, b"ready")
            if ending == "q":
                os.write(controller, b"q")
            else:
                process.send_signal(signal.SIGINT)
            seen += read_until(controller, b"\x1b[?1049l")  # back from the other screen
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(controller)
    assert b"Traceback" not in seen
    assert b"\x1b[?25h" in seen  # the cursor is shown again


def read_until(fd: int, wanted: bytes, seconds: float = 60) -> bytes:
    seen, deadline_s = b"", time.monotonic() + seconds
    while wanted not in seen:
        ready, _, _ = select.select([fd], [], [], max(0, deadline_s - time.monotonic()))
        assert ready, f"no {wanted!r} in {seen!r}"
        seen += os.read(fd, 65536)
    return seen
