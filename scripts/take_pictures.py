"""Takes the pictures of the web page and of `llm-stack top`, of a real server with SmolLM2 under some load.

    uv run python scripts/take_pictures.py docs/images

Needs Chromium and some minutes. The load comes from a few clients that ask in waves.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
from llm_stack_server.top.figures import Watch
from llm_stack_server.top.reader import Reader
from llm_stack_server.top.screen import frame
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

KEYS = {"search-team": "picture-key-1", "writers": "picture-key-2"}
KEY = KEYS["writers"]
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and say where each begins.",
    "Explain what a hash table is to a child.",
    "Write a short poem about the sea.",
    "What is the difference between a virus and a bacterium?",
)
SYSTEM = (
    "You are a patient teacher. Answer in plain words, give one example, and say so where you are not sure. "
    "Never answer in more than five sentences, and never repeat the question before you answer it."
)
CHAT = (
    "Write a Python function that returns the largest of three numbers. Show the code in a fenced block.",
    "Why is the sky blue? Answer in two sentences.",
)
PHONE = {"width": 390, "height": 780}
DESK = {"width": 1280, "height": 860}
TOP_COLUMNS = 96


class Load:
    """Clients that ask in waves: more and more of them, then fewer again."""

    def __init__(self, url: str, clients: int, wave_s: float) -> None:
        self._url = url
        self._clients = clients
        self._wave_s = wave_s
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(clients)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        key = list(KEYS.values())[index % len(KEYS)]
        start_s = time.monotonic()
        with httpx.Client(base_url=self._url, headers={"x-api-key": key}, timeout=120) as client:
            for turn in itertools.count(index):
                # Client 0 asks always; the last one only at the height of a wave.
                share = ((time.monotonic() - start_s) % self._wave_s) / self._wave_s
                if abs(share - 0.5) * 2 > 1 - index / self._clients:
                    self._end.wait(1)
                else:
                    self._ask(client, turn)
                if self._end.is_set():
                    return

    def _ask(self, client: httpx.Client, turn: int) -> None:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]},
        ]
        body = {"messages": messages, "max_tokens": 40 + 12 * (turn % 5), "temperature": 0.7, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            for _ in response.iter_lines():
                if self._end.is_set():
                    return


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server with SmolLM2 and two named keys."""
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    flags = [
        "--port",
        "0",
        "--threads",
        "1",
        "--no-progress",
        "--api-key-file",
        str(keys),
        "--kv-cache-bytes",
        str(2**26),
    ]
    command = [sys.executable, "-m", "llm_stack_server", "serve", "smollm2", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = next((line for line in process.stderr if "ready:" in line), "")
        found = re.search(r"http://[^,\s]+", said)
        if found is None:
            raise RuntimeError("the server did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def open_page(browser: Browser, url: str, size: dict[str, int], scheme: Any) -> Page:  # noqa: ANN401 -- a literal
    """The page with its key given."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.set_default_timeout(300_000)
    page.goto(url)
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.wait_for_selector("#model option", state="attached")
    return page


def ask(page: Page, question: str) -> None:
    """Send it and wait for the answer's end."""
    page.fill("#message", question)
    page.press("#message", "Enter")
    page.wait_for_selector(".turn.open", state="attached")
    page.wait_for_selector(".turn.open", state="detached")


def take_chat(browser: Browser, url: str, folder: Path) -> None:
    """Two questions, the first answered with code."""
    page = open_page(browser, url, DESK, "light")
    page.fill("#system", "You are a concise programming assistant.")
    page.fill("#temperature", "0")
    page.fill("#max-tokens", "200")
    for question in CHAT:
        ask(page, question)
    page.screenshot(path=folder / "web-page-chat.png")
    page.close()


def take_charts(browser: Browser, url: str, folder: Path, seconds: float) -> None:
    """The charts after some waves of load: light, dark, and the dark ones on a phone."""
    pages = [
        (open_page(browser, url, DESK, "light"), "web-page-charts.png"),
        (open_page(browser, url, DESK, "dark"), "web-page-charts-dark.png"),
        (open_page(browser, url, PHONE, "dark"), "web-page-phone.png"),
    ]
    for page, _ in pages:
        page.click("#tab-charts")
    time.sleep(seconds)
    for page, name in pages:
        page.screenshot(path=folder / name)
        page.close()


def take_top(browser: Browser, url: str, folder: Path, seconds: float) -> None:
    """A frame of `llm-stack top`, drawn by rich and made a picture by the browser."""
    watch, reader = Watch(), Reader(url, KEY)
    figures = watch.take(reader.read())
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or not figures.latencies.get("first token", (None,))[0]:
        time.sleep(2)
        figures = watch.take(reader.read())
    console = Console(record=True, width=TOP_COLUMNS, file=StringIO(), force_terminal=True)
    console.print(frame(figures, reader.url, TOP_COLUMNS, "q quits"))
    picture = console.export_svg(title="llm-stack top")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    if size is None:
        raise RuntimeError("rich made a picture without a size")
    page = browser.new_page(viewport={"width": int(float(size[1])), "height": int(float(size[2])) + 1})
    # Its style sheet names a font of another host, which is not fetched.
    page.route(re.compile("^https?://"), lambda route: route.abort())
    page.set_content(f"<style>body{{margin:0}}svg{{display:block}}</style>{picture}")
    page.screenshot(path=folder / "top.png", omit_background=True)
    page.close()


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=130, help="of load before the charts are taken")
    parser.add_argument("--only-chat", action="store_true", help="take no other picture")
    parsed = parser.parse_args()
    parsed.folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    with (
        tempfile.TemporaryDirectory() as scratch,
        server(Path(scratch)) as url,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        take_chat(browser, url, parsed.folder)
        if parsed.only_chat:
            return
        with Load(url, parsed.clients, wave_s=60):
            take_charts(browser, url, parsed.folder, parsed.seconds)
            take_top(browser, url, parsed.folder, 40)


if __name__ == "__main__":
    main()
