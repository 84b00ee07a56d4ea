"""The built-in page in headless Chromium, against the real application over a replayed model."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from llm_engine.errors import RequestFailed
from llm_engine.outputs import RequestDelta
from llm_engine.stats import EngineStats
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from server_replay_engine import ReplayEngine
from server_thread import serving

playwright_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

KEY = "a-key-of-the-test"
WAIT_MS = 30_000
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
    "[a](javascript:document.title='owned') ![b](https://evil.example/x.png) <b>bold</b>\n\n"
    "```html\n<script>document.title='owned'</script>\n```\n"
)
MARKDOWN = (
    "# Title\n\nSome **bold**, *soft* and `a <b>` of snake_case_names, 2 * 3 * 4.\n\n1. one\n2. two\n"
    "   - inner\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\nSee https://example.org/a_b."
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TOOL = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]'


class PacedEngine(ReplayEngine):
    """Replays at a pace, counts what it says, and may fail after some tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_s = 0.0
        self.fails_after: int | None = None
        self.prompt_tokens = self.generated_tokens = 0

    async def generate(self, prompt: Any, params: Any, **more: Any) -> AsyncIterator[RequestDelta]:
        self.prompt_tokens += len(prompt)
        deltas = super().generate(prompt, params, **more)
        try:
            said = 0
            async for delta in deltas:
                if said == self.fails_after:
                    raise RequestFailed("the step failed")
                yield delta
                said += len(delta.token_ids)
                self.generated_tokens += len(delta.token_ids)
                await asyncio.sleep(self.pause_s)
        finally:
            await deltas.aclose()

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=self.live,
            kv_blocks_total=10,
            kv_blocks_free=5,
            kv_blocks_used=3,
            kv_blocks_cached=2,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            prefix_query_tokens=self.prompt_tokens,
            prefix_hit_tokens=self.prompt_tokens // 2,
        )


@dataclass
class Opened:
    """A page, with all that it complained of and asked for."""

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def ask(self, text: str) -> None:
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")

    def until(self, expression: str) -> None:
        """Wait for it; playwright's own way needs eval, which the page's policy forbids."""
        until(lambda: self.page.evaluate(expression))

    def answer(self) -> Any:
        """The last answer, once it has ended."""
        turn = self.page.locator(".turn.assistant").last
        self.until("!document.querySelector('.turn.open') && document.querySelector('.turn.assistant')")
        return turn


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def replay() -> PacedEngine:
    return PacedEngine()


@pytest.fixture(scope="module")
def url(replay: PacedEngine) -> Iterator[str]:
    with serving(create_app(ServerSettings(output_format="hermes"), replay)) as address:
        yield address


@pytest.fixture
def opened(browser: Any, url: str, replay: PacedEngine) -> Iterator[Opened]:
    """The page of the server without keys; at the end nothing has gone wrong in it."""
    replay.script, replay.pause_s, replay.fails_after = "Hello.", 0.0, None
    with browser.new_context() as context:
        made = open_page(context, url)
        yield made
        assert made.faults == []
        assert made.foreign == []


def open_page(context: Any, url: str) -> Opened:
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    made = Opened(page, url)
    page.on("console", lambda message: made.faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: made.faults.append(str(error)))
    page.on("dialog", lambda dialog: (made.faults.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: None if asked.url.startswith(url) else made.foreign.append(asked.url))
    page.goto(url)
    page.wait_for_selector(".dot.good")
    page.wait_for_selector("#model option", state="attached")
    return made


def test_an_answer_comes_to_the_letter(opened, replay):
    replay.script = 'Grüße 👋🏽,\n\n  two  spaces\t\\ and "quotes" & <tags>.\r\n *no emphasis* | é ﷽ 漢字\n'
    opened.page.uncheck("#markdown")
    opened.page.fill("#system", "Be brief.")
    opened.page.fill("#temperature", "0.5")
    opened.page.fill("#max-tokens", "100")
    opened.page.fill("#message", "First")
    opened.page.press("#message", "Shift+Enter")
    opened.page.locator("#message").press_sequentially("second")
    opened.page.press("#message", "Enter")
    answer = opened.answer()
    assert answer.locator(".body").evaluate("node => node.textContent") == replay.script
    prompt, params = replay.seen[-1]
    assert "<|im_start|>user\nFirst\nsecond<|im_end|>" in replay.tokenizer.decode(
        prompt, skip_special_tokens=False
    )
    assert "system\nBe brief." in replay.tokenizer.decode(prompt, skip_special_tokens=False)
    assert (params.temperature, params.max_tokens) == (0.5, 100)
    figures = answer.locator(".figures").inner_text()
    assert "first token" in figures
    assert "tokens/s" in figures
    assert f"tokens out of {len(prompt)} in" in figures
    assert opened.page.locator("#said").inner_text() == "The answer is complete."


def test_markdown_becomes_elements(opened, replay):
    replay.script = MARKDOWN
    opened.ask("Show")
    body = opened.answer().locator(".body")
    expected = {
        "h3": "Title", "strong": "bold", "em": "soft", "p code": "a <b>", "ol > li > ul > li": "inner",
        "blockquote p": "quoted", "th >> nth=1": "b", "td >> nth=0": "1", "pre code": "x = 1",
        "a": "https://example.org/a_b",
    }  # fmt: skip
    assert {selector: body.locator(selector).inner_text() for selector in expected} == expected
    assert "snake_case_names, 2 * 3 * 4." in body.inner_text()
    assert body.locator("a").get_attribute("rel") == "noopener noreferrer nofollow"
    assert body.locator("pre").get_attribute("data-language") == "python"

    # Code of an item, as models write it: its lines begin anywhere.
    replay.script = (
        "1. **A**:\n   ```python\ndef f():\n    2. x\n```\n\n"
        "2. **B**\n    ```\n    y\n      z\n    ```\n\nEnd"
    )
    opened.ask("Code")
    body = opened.answer().locator(".body")
    assert body.locator("ol > li > pre").all_inner_texts() == ["def f():\n    2. x", "y\n  z"]
    assert body.locator("ol > li > strong").all_inner_texts() == ["A", "B"]
    assert body.locator("ol").count() == 1
    assert body.locator("p").inner_text() == "End"


def test_what_a_model_writes_does_nothing(opened, replay):
    replay.script = HOSTILE
    opened.ask(HOSTILE)  # the user's text neither
    body = opened.answer().locator(".body")
    assert body.locator("img, script, b, a[href^=javascript]").count() == 0
    assert "<img src=x onerror=" in body.inner_text()
    assert opened.page.title() == "LLM Stack"
    # Were the page's code ever wrong: the browser refuses to make HTML of a string at all.
    with pytest.raises(playwright_api.Error, match="TrustedHTML"):
        opened.page.evaluate("document.body.innerHTML = '<b>x</b>'")
    opened.faults.clear()  # it told of that


def test_stop_ends_the_answer_and_its_work(opened, replay):
    replay.script, replay.pause_s = "word " * 1500, 0.01
    opened.ask("Go on")
    opened.until("document.querySelector('.turn.assistant .body')?.textContent.length > 40")
    opened.page.click("#stop-answer")
    answer = opened.answer()
    assert answer.locator(".figures").inner_text().endswith("stopped by you")
    assert 40 < len(answer.locator(".body").inner_text()) < len(replay.script) / 2
    until(lambda: replay.live == 0 and replay.num_open == 0)
    replay.script, replay.pause_s = "Again.", 0.0
    opened.ask("And now?")
    assert opened.answer().locator(".body").inner_text() == "Again."


def test_edit_again_and_clear(opened, replay):
    opened.ask("One")
    opened.answer()
    replay.script = "Other."
    opened.page.click(".turn.assistant >> text=Try again")
    opened.page.wait_for_selector(".turn.assistant:not(.open) >> text=Other.")
    opened.page.click(".turn.user >> text=Edit")
    opened.page.fill(".edit textarea", "Two")
    opened.page.click("text=Send again")
    opened.page.wait_for_selector(".turn.user >> text=Two")
    opened.answer()
    assert opened.page.locator(".turn").count() == 2
    prompt = replay.tokenizer.decode(replay.seen[-1][0])
    assert "Two" in prompt
    assert "One" not in prompt
    opened.page.click("#clear")
    assert opened.page.locator(".turn").count() == 0
    assert opened.page.evaluate("document.activeElement.id") == "message"


def test_reasoning_is_folded_and_calls_are_shown(opened, replay):
    replay.script = f"<think>Which city?</think>I ask.{CALL}"
    opened.page.fill("#tools", TOOL)
    opened.ask("Weather?")
    answer = opened.answer()
    assert answer.locator(".thoughts").get_attribute("open") is None
    assert answer.locator(".thoughts pre").text_content() == "Which city?"
    assert answer.locator(".body").inner_text() == "I ask."
    assert answer.locator(".call h3").inner_text() == "Calls weather"
    assert answer.locator(".call pre").inner_text() == '{\n  "city": "Zürich"\n}'


def test_errors_are_told(opened, replay):
    opened.page.fill("#max-tokens", "100000")
    opened.ask("Too long")
    told = opened.answer().locator(".fault").inner_text()
    assert "max_tokens" in told or "context" in told
    assert "(400" in told
    opened.page.fill("#max-tokens", "")
    opened.page.fill("#tools", "{no json")
    opened.ask("Bad tools")
    assert "Tools are not JSON" in opened.answer().locator(".fault").inner_text()
    opened.page.fill("#tools", "")
    replay.fails_after = 2
    replay.script = "one two three four"
    opened.ask("Fail on the way")
    answer = opened.answer()
    assert "the step failed" in answer.locator(".fault").inner_text()
    assert answer.locator(".body").inner_text().startswith("one")
    # The browser itself notes the refused request; nothing else may be there.
    assert [text for text in opened.faults if "status of 400" not in text] == []
    opened.faults.clear()


def test_charts_show_what_happens(opened, replay):
    replay.script, replay.pause_s = "word " * 400, 0.01
    opened.page.click("#tab-charts")
    opened.page.click("#tab-chat")  # counting goes on behind the chat
    opened.ask("Go on")
    opened.page.click("#tab-charts")
    shown = "document.querySelectorAll('.chart')[{}].querySelector('.legend b').textContent"
    for index in range(9):
        if index != 5:  # the time of a whole request has no value before its end
            opened.until(f"!['\\u2013', '0', '0 %', ''].includes({shown.format(index)})")
    opened.until("document.querySelector('#tiles dd').textContent.endsWith(' tok/s')")
    texts = opened.page.locator(".chart .entry").all_inner_texts()
    kv = [" ".join(text.split()) for text in texts if "in use" in text or "kept" in text]
    assert kv == ["in use 30 %", "kept for reuse 20 %"]
    assert (
        opened.page.locator(".chart svg[role=img]")
        .first.get_attribute("aria-label")
        .startswith("Output tokens")
    )
    assert opened.page.locator(".plot path.line").count() >= 9


def test_a_hidden_page_asks_nothing(opened):
    asked: list[str] = []
    opened.page.on("request", lambda request: asked.append(request.url))
    opened.page.click("#tab-charts")
    until(lambda: opened.page.evaluate("1") and sum(url.endswith("/metrics") for url in asked) >= 2)
    opened.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    opened.page.wait_for_timeout(300)  # what was under way may end
    asked.clear()
    opened.page.wait_for_timeout(2500)
    assert asked == []
    opened.page.evaluate("delete document.hidden")
    until(lambda: opened.page.evaluate("1") and any(url.endswith("/metrics") for url in asked))


def test_a_key_is_asked_for_and_never_in_a_url(browser):
    with (
        serving(create_app(ServerSettings(api_key=(KEY,)), PacedEngine())) as url,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        urls: list[str] = []
        page.on("request", lambda asked: urls.append(asked.url))
        page.goto(url)
        for key in ("wrong", KEY):
            page.wait_for_selector("#key-dialog[open]")
            page.fill("#key", key)
            page.press("#key", "Enter")
        page.wait_for_selector("#model option", state="attached")
        page.fill("#message", "Hi")
        page.press("#message", "Enter")
        page.wait_for_selector(".turn.assistant:not(.open) >> text=Hello.")
        assert not any(KEY in each for each in (*urls, page.url))
        assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert page.locator("#key-dialog[open]").count() == 0


def test_a_key_that_is_refused_is_not_asked_for_again_and_again(browser):
    app = create_app(ServerSettings(api_key=(KEY,)), PacedEngine())
    with serving(app) as url, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        answers: list[str] = []
        page.on("response", lambda answer: answers.append(f"{answer.status} {answer.url}"))
        page.goto(f"{url}/#charts")
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.press("Escape")
        answers.clear()
        until(lambda: page.evaluate("1") and answers.count(f"401 {url}/metrics") >= 2)
        assert page.locator("#key-dialog[open]").count() == 0
        assert "API key" in page.locator("#charts-note").inner_text()
        page.click("#tab-chat")
        page.fill("#message", "Hi")
        page.press("#message", "Enter")
        page.wait_for_selector("#key-dialog[open]")


def test_a_server_that_goes_away_is_told(browser):
    engine = PacedEngine()
    engine.script, engine.pause_s = "word " * 1500, 0.01
    with browser.new_context() as context:
        with serving(create_app(ServerSettings(), engine)) as url:
            opened = open_page(context, url)
            opened.ask("Go on")
            opened.until("document.querySelector('.turn.assistant .body').textContent.length > 40")
        assert "ended before the answer did" in opened.answer().locator(".fault").inner_text()
        opened.page.wait_for_selector("#standing >> text=unreachable")


READ = """async ([before, after]) => {
  const { increases, parseMetrics, quantile, total } = await import("/page/metrics.js");
  const steps = increases(parseMetrics(before), parseMetrics(after));
  return [total(steps, "a_total"), quantile(steps, "h", 0.5), quantile(steps, "h", 0.99)];
}"""


def exposition(count: int, *buckets: int) -> str:
    bounds = zip(("0.1", "1.0", "+Inf"), buckets, strict=True)
    lines = [f'h_bucket{{le="{le}",route="a\\"b}}"}} {value}.0 # {{id="x"}} 1' for le, value in bounds]
    return "\n".join(["# TYPE a counter", f"a_total {count}.0", *lines, "# EOF", ""])


def test_differences_of_readings(opened):
    def read(before: str, after: str) -> list[Any]:
        return opened.page.evaluate(READ, [before, after])

    assert read(exposition(5, 1, 1, 1), exposition(9, 1, 5, 5)) == [
        4,
        pytest.approx(0.55),
        pytest.approx(0.991),
    ]
    assert read(exposition(5, 8, 8, 8), exposition(2, 0, 2, 2)) == [
        2,
        pytest.approx(0.55),
        pytest.approx(0.991),
    ]
    assert read(exposition(5, 1, 1, 1), exposition(5, 1, 1, 1)) == [0, None, None]
    assert read(exposition(0, 0, 0, 0), exposition(0, 0, 0, 3)) == [0, 1, 1]


def until(condition) -> None:
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
