"""Owns the front end's record of a request that is under way; knows nothing of how its outputs are made."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from llm_engine.core.messages import AddRequest
from llm_engine.errors import EngineError
from llm_engine.late_stops import LateStops
from llm_engine.outputs import RequestDelta
from llm_engine.prompts import TokensPrompt
from llm_engine.sampling_params import SamplingParams

DeltaSink: TypeAlias = Callable[[RequestDelta | EngineError], None]
"""Takes each delta of a request in order; an error is the last thing it takes."""


@dataclass(slots=True, kw_only=True, eq=False)
class Choice:
    """One of the `n` answers; the core knows it as a request of its own.

    Attributes:
        index: Its place among the answers.
        message: What asks the core for it.
        stop_reasons: Stop token id to what is reported: None for the end of sequence, else an id or a string.
        slot: In the detokenizer; None when no text is wanted.
        late_stops: The stop search, when it must not start with the first token.
        num_output_tokens: Tokens so far.
        log: The tokens the core has given, for a core that comes after it.
        has_begun: Whether the core has given anything; what it tells once was told.
        num_cached_tokens: Prompt tokens found in the prefix cache by the core that began.
    """

    index: int
    message: AddRequest
    stop_reasons: dict[int, str | int | None]
    slot: int | None = None
    late_stops: LateStops | None = None
    num_output_tokens: int = 0
    log: "array[int]" = field(default_factory=lambda: array("i"))
    has_begun: bool = False
    num_cached_tokens: int = 0

    @property
    def core_id(self) -> str:
        """Its id in the core, unique for the life of the front end."""
        return self.message.request_id

    def resumed(self) -> AddRequest:
        """What asks another core to go on where the last one ended."""
        message, params = self.message, self.message.params
        if self.has_begun and params.prompt_logprobs is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return msgspec.structs.replace(
            message,
            params=params,
            match_prefix=message.match_prefix or self.has_begun,
            output_ids=np.array(self.log, "<i4").tobytes(),
            resumed=True,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """A request under way.

    Attributes:
        request_id: The caller's id; two live requests may share it.
        prompt: The prompt.
        params: The settings.
        choices: All answers, by index.
        sink: Where deltas go.
        held: Choices the core was not told of yet: they wait for the first, to share its prompt's blocks.
        open: Indices of the choices that have not ended.
    """

    request_id: str
    prompt: TokensPrompt
    params: SamplingParams
    choices: list[Choice]
    sink: DeltaSink
    held: list[Choice] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
