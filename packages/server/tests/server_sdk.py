"""What the tests of client libraries share: a server on a socket whose model says any text to the letter."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from llm_engine.errors import EngineBusy
from llm_engine.pooling_outputs import EmbeddingOutput
from llm_engine.worker.pooling_info import PoolingInfo, ShortVectors
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from server_real_templates import template
from server_replay_engine import ReplayEngine
from server_thread import serving
from test_server_fault_chat import QWEN, Retold

KEY = "sk-test"
UNICODE = 'Grüße, ďábel 👩‍👩‍👧 日本語 \u200d "q" \\n'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Brno ☀️"}}\n</tool_call>'
CITY = {"city": "Brno ☀️"}
WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PERSON_SCHEMA = {
    "title": "Person",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON = {"name": "Zoë", "age": 7}
ENDLESS = "and so on " * 150


class SdkEngine(ReplayEngine):
    """Replays, under a template that thinks and calls; may be slow, and busy for the first requests."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = Retold(template(QWEN))
        self.reset()

    def reset(self) -> None:
        """As new, for the next test."""
        self.script = "Hello."
        self.pause_s = 0.0
        self.busy = 0
        self.aborted = 0
        self.seen.clear()

    async def generate(self, prompt, params, **more):
        if self.busy:
            self.busy -= 1
            raise EngineBusy(0.1)
        finished = False
        try:
            async for delta in super().generate(prompt, params, **more):
                await asyncio.sleep(self.pause_s)
                yield delta
            finished = True
        finally:
            self.aborted += not finished

    def was_aborted(self) -> bool:
        """Whether a request ended before its end; gives it the time to."""
        deadline_s = time.monotonic() + 10
        while not self.aborted and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return self.aborted == 1 and self.live == 0 and self.num_open == 0


class ReplayEmbedder(ReplayEngine):
    """The vector of a text is its length and its number of tokens."""

    info = PoolingInfo(
        architecture="replay",
        vocab_size=0,
        max_tokens=2048,
        size=2,
        labels=(),
        per_token=False,
        normalize=False,
        num_token_types=0,
        num_parameters=0,
        dtype="float32",
        device="cpu",
        load_s=0.0,
    )
    short_vectors = ShortVectors()

    async def embed(self, texts: Sequence[str | Sequence[int]], **more: object) -> list[EmbeddingOutput]:
        """As `AsyncPoolingLLM.embed`."""
        outputs = []
        for text in texts:
            shown = text if isinstance(text, str) else self.tokenizer.decode(list(text))
            tokens = len(self.tokenizer.encode(shown))
            vector = np.array([len(shown), tokens], np.float32)
            outputs.append(EmbeddingOutput(embedding=vector, num_prompt_tokens=tokens))
        return outputs

    async def score(self, pairs, **more):
        """None of these tests ranks."""
        raise NotImplementedError

    classify = reward = score


@dataclass(frozen=True, slots=True)
class SdkServer:
    """A server that generates and one that embeds, both with the key `KEY`."""

    url: str
    engine: SdkEngine
    embedder_url: str


@contextlib.contextmanager
def sdk_server() -> Iterator[SdkServer]:
    """Both servers until the block ends."""
    engine = SdkEngine()
    settings = ServerSettings(api_key=(KEY,), any_dimensions=True)
    with (
        serving(create_app(settings, engine)) as url,
        serving(create_app(settings, ReplayEmbedder())) as embedder_url,
    ):
        yield SdkServer(url, engine, embedder_url)


def vector(text: str) -> list[float]:
    """What `ReplayEmbedder` gives for ``text``."""
    embedder = ReplayEmbedder()
    return [float(len(text)), float(len(embedder.tokenizer.encode(text)))]
