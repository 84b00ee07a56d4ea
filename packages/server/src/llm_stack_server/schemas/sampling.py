"""The sampling fields that chat and completions share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_stack_server.schemas.fields import CacheSalt, Finite, Int64, LogitBias, RequestBody, StopStrings
from llm_stack_server.schemas.structured import StructuredFields

MAX_CHOICES = 128


class StreamOptions(RequestBody):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; we send none either way


class SamplingFields(StructuredFields):
    """What decides the tokens; None means the documented default."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Int64 | None = None
    min_p: Finite | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repetition_penalty: Finite | None = None
    seed: Int64 | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    stop: StopStrings = ()
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool | None = None
    logit_bias: LogitBias = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
