"""What the server needs of an engine: the shape of `llm_engine.AsyncLLM`. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from llm_engine.cache_pins import CachePin
from llm_engine.core.core_state import CoreState
from llm_engine.outputs import RequestDelta
from llm_engine.sampling_params import SamplingParams
from llm_engine.stats import EngineStats

API_VERSION = 1


class TextCodec(Protocol):
    """The part of `llm_tokenizer.Tokenizer` in use. All methods are safe to call from threads."""

    def __hash__(self) -> int:
        """By identity, so that what is derived from a codec can be kept."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja template, or None."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out with ``skip_special_tokens``."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        """Token ids of ``text``; with ``allow_special`` false none is special, whatever the text spells."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for."""
        ...

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,  # noqa: ANN401 -- template variables are any JSON value
    ) -> str:
        """The conversation as prompt text; raises `llm_tokenizer.TemplateError`."""
        ...


class Engine(Protocol):
    """A running engine. Errors are those of `llm_engine.errors`."""

    @property
    def tokenizer(self) -> TextCodec:
        """The model's tokenizer."""
        ...

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds where a request states nothing."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Valid token ids are below this."""
        ...

    @property
    def model_name(self) -> str:
        """The name under which the model is served by default."""
        ...

    def generate(
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
        """Deltas of all choices. Closing the iterator aborts the request at once."""
        ...

    async def stats(self) -> EngineStats:
        """A fresh snapshot of the core."""
        ...

    @property
    def state(self) -> CoreState:
        """Where the core is in its life."""
        ...

    def is_healthy(self) -> bool:
        """Whether the core runs now."""
        ...

    async def shutdown(self) -> None:
        """End the core; live requests raise `EngineDead`."""
        ...
