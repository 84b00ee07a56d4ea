"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from llm_stack_server.schemas.chat import ChatMessage
from llm_stack_server.schemas.fields import Int64, RequestBody


class TokenizeRequest(RequestBody):
    """The body of ``POST /tokenize``: either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(RequestBody):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[Int64]
    skip_special_tokens: bool | None = None
