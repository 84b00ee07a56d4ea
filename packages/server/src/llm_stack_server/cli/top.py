"""``llm-stack top``: a live view of a running server, in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from llm_stack_server.errors import StartupError
from llm_stack_server.top.figures import Figures, Watch
from llm_stack_server.top.keyboard import open_keyboard
from llm_stack_server.top.reader import Reader
from llm_stack_server.top.screen import frame

_DEFAULT_URL = "http://127.0.0.1:8000"
_MIN_INTERVAL_S = 0.2
_QUIT_KEYS = ("q", "Q", "\x1b", "\x04")
_DIGEST = "sha256:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--url", default=_DEFAULT_URL, help=f"where the server listens (default: {_DEFAULT_URL})"
    )
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file with a key of the server; its first key is used"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two readings (default: 1)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one frame and end, as it does where the output is no terminal",
    )


def run(parsed: argparse.Namespace) -> int:
    """Show the server until q or Ctrl-C; with --once 1 where it could not be read."""
    if not (math.isfinite(parsed.interval) and parsed.interval >= _MIN_INTERVAL_S):
        raise StartupError(f"interval: must be at least {_MIN_INTERVAL_S} seconds, got {parsed.interval}")
    key = "" if parsed.api_key_file is None else read_key(parsed.api_key_file)
    reader = Reader(parsed.url, key)
    console = Console()
    if parsed.once or not console.is_terminal:
        return show_once(reader, console, parsed.interval)
    with contextlib.suppress(KeyboardInterrupt):
        show_live(reader, console, parsed.interval)
    return 0


def show_once(reader: Reader, console: Console, interval_s: float) -> int:
    """Print one frame, of two readings an interval apart; 1 where there was nothing to read."""
    watch = Watch()
    figures = watch.take(reader.read())
    if figures.reading.samples is not None:
        time.sleep(interval_s)
        figures = watch.take(reader.read())
    console.print(frame(figures, reader.url, console.width))
    return 0 if figures.reading.samples is not None else 1


def show_live(reader: Reader, console: Console, interval_s: float) -> None:
    """Show the server until a key that quits. A server that is away is waited for."""
    watch = Watch()
    with open_keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            start_s = time.monotonic()
            figures = watch.take(reader.read())
            live.update(frame(figures, reader.url, console.width, _hint(figures)), refresh=True)
            rest_s = max(0.05, interval_s - (time.monotonic() - start_s))
            if keyboard.wait(rest_s) in _QUIT_KEYS:
                return


def _hint(figures: Figures) -> str:
    return "q quits" if figures.reading.state != "down" else "trying again, q quits"


def read_key(path: str) -> str:
    """The first key of a file as `--api-key-file` of the server takes it: ``KEY`` or ``NAME KEY`` a line.

    Raises:
        StartupError: The file cannot be read, holds no key, or only a key's digest.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"api_key_file: {path} cannot be read: {error}") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    keys = [words[-1] for words in lines if not words[-1].startswith(_DIGEST)]
    if not keys:
        reason = "holds digests only, and a digest opens nothing" if lines else "holds no key"
        raise StartupError(f"api_key_file: {path} {reason}")
    if not keys[0].isascii() or not keys[0].isprintable():
        raise StartupError(f"api_key_file: {path}: a key must be printable ASCII")
    return keys[0]
