"""An engine double with the shape of `AsyncLLM`, and clients over the real application."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import httpx
import pytest
from llm_engine.cache_pins import CachePin
from llm_engine.core.core_state import CoreState
from llm_engine.outputs import RequestDelta, TokenLogprobs
from llm_engine.sampling_params import SamplingParams
from llm_engine.stats import EngineStats
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from llm_tokenizer import TemplateError

EOS = 256
VOCAB = 260


class ByteCodec:
    """One token a byte; 256 is the end of sequence."""

    chat_template: str | None = "system user assistant"
    special_token_ids = frozenset({EOS})

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        end = "" if skip_special_tokens else "<eos>"
        parts = [end if token == EOS else chr(token) if token < 128 else "�" for token in ids]
        raw = bytes(token for token in ids if token < 256)
        return raw.decode(errors="replace") if EOS not in ids else "".join(parts)

    def token_bytes(self, token_id: int) -> bytes:
        return b"<eos>" if token_id == EOS else bytes([token_id])

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        if messages[0]["role"] == "tool":
            raise TemplateError("a tool message needs a call before it")
        text = "".join(f"[{turn['role']}]{turn['content']}\n" for turn in messages)
        if continue_final_message:
            return text[:-1]
        return text + ("[assistant]" if add_generation_prompt else "")


class EngineDouble:
    """Answers with `script`, one token a delta. `gate` holds every request before its first token."""

    def __init__(self) -> None:
        self.tokenizer = ByteCodec()
        self.max_model_len = 200
        self.default_sampling_params = SamplingParams()
        self.vocab_size = VOCAB
        self.model_name = "double"
        self.script = "Grüße, welcome to the end."
        self.state = CoreState(phase="running", generation=1)
        self.error: Exception | None = None
        self.error_after: int | None = None
        self.gate: asyncio.Event | None = None
        self.seen: list[tuple[list[int], SamplingParams, int]] = []
        self.cache_uses: list[tuple[str, bytes | None, tuple[CachePin, ...]]] = []
        self.live = 0
        self.aborted = 0

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        cache_salt: bytes | None = None,
        cache_pins: Sequence[CachePin] = (),
    ) -> AsyncIterator[RequestDelta]:
        assert isinstance(prompt, list)
        self.cache_uses.append((tenant, cache_salt, tuple(cache_pins)))
        self.seen.append((prompt, params, priority))
        self.live += 1
        finished = False
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None and self.error_after is None:
                raise self.error
            for step, delta in enumerate(self._deltas(prompt, params, request_id or "")):
                if self.error is not None and step == self.error_after:
                    raise self.error
                await asyncio.sleep(0)
                yield delta
            finished = True
        finally:
            self.live -= 1
            self.aborted += not finished

    def _deltas(self, prompt: list[int], params: SamplingParams, request_id: str) -> list[RequestDelta]:
        tokens = [*self.script.encode(), EOS]
        room = self.max_model_len - len(prompt)
        limit = min(room if params.max_tokens is None else params.max_tokens, len(tokens))
        common = {"request_id": request_id, "num_prompt_tokens": len(prompt), "num_cached_tokens": 2}
        scored = None
        if params.prompt_logprobs is not None:
            scored = (None, *(self._logprob(token, params.prompt_logprobs) for token in prompt[1:]))
        if limit == 0:
            return [
                RequestDelta(
                    **common, index=0, text="", token_ids=(), finish_reason="length", prompt_logprobs=scored
                )
            ]
        # The last choice first, so that siblings must wait for the prompt's logprobs.
        order = [index for _ in range(limit) for index in reversed(range(params.n))]
        pending = dict.fromkeys(range(params.n), b"")
        position = dict.fromkeys(range(params.n), 0)
        deltas = []
        for index in order:
            token = tokens[position[index]]
            position[index] += 1
            pending[index] += bytes([token]) if token != EOS else b""
            try:
                text = pending[index].decode()
                pending[index] = b""
            except UnicodeDecodeError:
                text = ""
            last = position[index] == limit
            deltas.append(
                RequestDelta(
                    **common,
                    index=index,
                    text=text,
                    token_ids=(token,),
                    logprobs=None if params.logprobs is None else (self._logprob(token, params.logprobs),),
                    finish_reason=("stop" if token == EOS else "length") if last else None,
                    num_output_tokens=position[index],
                    prompt_logprobs=scored if index == 0 and position[index] == 1 else None,
                )
            )
        return deltas

    def _logprob(self, token: int, count: int) -> TokenLogprobs:
        top = tuple(((token + step) % 128, -0.5 - step) for step in range(count))
        return TokenLogprobs(token_id=token, logprob=-0.5, rank=1, top=top)

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=self.live,
            kv_blocks_total=10,
            kv_blocks_free=7,
            kv_blocks_used=3,
            requests_finished={"stop": 4},
        )

    def is_healthy(self) -> bool:
        return self.state.phase == "running"

    async def shutdown(self) -> None:
        self.state = CoreState(phase="dead", generation=1)


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble()


@pytest.fixture
def make_client(engine: EngineDouble) -> Callable[..., httpx.AsyncClient]:
    def make(*, start: bool = True, **settings: Any) -> httpx.AsyncClient:
        app = create_app(ServerSettings(**settings), engine if start else None)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://test")
        client.app = app
        return client

    return make


@pytest.fixture
def client(make_client: Callable[..., httpx.AsyncClient]) -> httpx.AsyncClient:
    return make_client()
