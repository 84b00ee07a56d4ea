"""The body of /v1/completions and its prompt in every spelling."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from llm_stack_server.schemas.sampling import SamplingFields

MAX_PROMPTS = 1024
MAX_LOGPROBS = 20

PromptItem = str | list[int]


def _are_token_ids(value: list[object]) -> bool:
    return set(map(type, value)) <= {int}  # exact types: a bool is no token id; millions of ids take no time


def _prompts(value: object) -> list[PromptItem]:
    """Every spelling as a list of texts or token id lists."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    if _are_token_ids(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed in one request")
    for index, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and _are_token_ids(item)):
            raise ValueError(f"item {index} must be a string or a list of integer token ids")
    if len({type(item) for item in value}) > 1:
        raise ValueError("strings and token ids must not be mixed")
    return value


class CompletionRequest(SamplingFields):
    """The body of ``POST /v1/completions``."""

    prompt: Annotated[
        list[Any],
        BeforeValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None
