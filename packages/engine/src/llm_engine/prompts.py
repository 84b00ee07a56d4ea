"""Owns the forms a prompt may have and their way to token ids; knows nothing of sampling or of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from llm_tokenizer import Tokenizer, TokenizerError

from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import check_unicode

Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """A prompt that is tokenized already.

    Attributes:
        token_ids: The tokens.
        text: Their text, if it is to be shown in outputs.
    """

    token_ids: Sequence[int]
    text: str | None = None


Prompt: TypeAlias = str | Sequence[int] | TokensPrompt


def to_tokens(tokenizer: Tokenizer | None, prompt: Prompt, *, field: str = "prompt") -> TokensPrompt:
    """Turn any form of prompt into tokens. Blocking (the tokenizer runs outside the interpreter lock).

    Args:
        tokenizer: The model's; None takes token ids only.
        prompt: Text (special tokens are added as the tokenizer is set up to), or token ids as they are.
        field: The field to name in an error.

    Raises:
        InvalidRequest: Neither text nor a list of integers, empty, or not valid Unicode.
    """
    if isinstance(prompt, TokensPrompt):
        return TokensPrompt(_as_ids(prompt.token_ids, field), prompt.text)
    if not isinstance(prompt, str):
        return TokensPrompt(_as_ids(prompt, field))
    if not prompt:
        raise InvalidRequest(field, "must not be empty")
    if tokenizer is None:
        raise InvalidRequest(field, "must be token ids: the model has no tokenizer")
    check_unicode(field, prompt)
    return TokensPrompt(tokenizer.encode(prompt), prompt)


def chat_to_tokens(
    tokenizer: Tokenizer,
    messages: Conversation,
    **template_options: Any,  # noqa: ANN401 - the template's variables are any JSON value
) -> TokensPrompt:
    """Render a conversation with the model's chat template and encode it.

    The template writes the special tokens itself, so none are added on encoding (no second BOS).

    Args:
        tokenizer: The model's.
        messages: Of one conversation: mappings with "role" and "content".
        **template_options: Passed to `Tokenizer.render_chat`: tools, documents, add_generation_prompt,
            continue_final_message, template and the template's own variables.

    Raises:
        InvalidRequest: No messages, a malformed one, or the template refused them; the field is "messages".
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages", "must be a non-empty list of messages")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest("messages", f"message {position} must be a mapping with a role")
    try:
        text = tokenizer.render_chat([dict(message) for message in messages], **template_options)
    except TokenizerError as error:
        raise InvalidRequest("messages", str(error)) from error
    check_unicode("messages", text)
    return TokensPrompt(tokenizer.encode(text, add_special_tokens=False), text)


def _as_ids(token_ids: object, field: str) -> list[int]:
    if isinstance(token_ids, np.ndarray):
        if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
            raise InvalidRequest(
                field, f"an array of token ids must be one row of integers, got {token_ids.dtype}"
            )
        return cast("list[int]", token_ids.tolist())
    if isinstance(token_ids, bytes | Mapping) or not isinstance(token_ids, Sequence):
        raise InvalidRequest(field, f"must be text or a list of token ids, got {type(token_ids).__name__}")
    return list(token_ids)
