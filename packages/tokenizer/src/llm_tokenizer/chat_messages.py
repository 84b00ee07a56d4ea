"""Owns what a chat template gets to see of a caller's messages: checks, a copy in plain JSON types, marks.

Knows nothing of templates' sources or of how they run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_tokenizer.errors import InvalidArgument

CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
# Names under which a message's reasoning is passed; the first is the one that templates read most.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Roles whose content people write; what other roles say may be any JSON value, as a tool's result.
_WRITTEN_ROLES = frozenset({"system", "developer", "user", "assistant"})

Message = dict[str, Any]


def checked_messages(messages: Sequence[Any]) -> list[Message]:
    """A copy of the messages in plain JSON types, without the keys whose value is `None`.

    Args:
        messages: Mappings, dataclasses, or objects with a `model_dump` method.

    Raises:
        InvalidArgument: Not a list, empty, or a message is malformed.
    """
    if not isinstance(messages, list | tuple):
        raise InvalidArgument("messages", f"must be a list of objects, is {type(messages).__name__}")
    if not messages:
        raise InvalidArgument("messages", "must not be empty")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: object) -> Message:
    name = f"messages[{index}]"
    plain = plain_argument(name, message)
    if not isinstance(plain, dict):
        raise InvalidArgument(name, f"must be an object, is {type(message).__name__}")
    plain = {key: value for key, value in plain.items() if value is not None}
    role, content = plain.get("role"), plain.get("content")
    if not isinstance(role, str):
        raise InvalidArgument(f"{name}.role", "must be a string")
    if role in _WRITTEN_ROLES and not (content is None or isinstance(content, str | list | tuple)):
        raise InvalidArgument(
            f"{name}.content", f"must be a string or a list of parts, is {type(content).__name__}"
        )
    reasoning = next((plain[key] for key in _REASONING_KEYS if key in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def checked_objects(field: str, values: Sequence[Any] | None) -> list[Any] | None:
    """A copy of a list of objects in plain JSON types.

    Raises:
        InvalidArgument: Not a list, or one is not an object.
    """
    if values is None:
        return None
    plain = [plain_argument(field, value) for value in values] if isinstance(values, list | tuple) else None
    if plain is None or not all(isinstance(value, dict) for value in plain):
        raise InvalidArgument(field, "must be a list of objects")
    return plain


def plain_argument(field: str, value: object) -> Any:  # noqa: ANN401  # any JSON value comes out
    """`plain_value` of a caller's argument.

    Raises:
        InvalidArgument: It holds itself, or is nested too deeply to be copied.
    """
    try:
        return plain_value(value)
    except RecursionError as error:
        raise InvalidArgument(field, "is nested too deeply, or holds itself") from error


def plain_value(value: Any) -> Any:  # noqa: ANN401  # any value goes in, any JSON value comes out
    """`value` in exact JSON types: templates must not reach the methods of richer objects.

    What has no such form, as an image, becomes a text that names its type.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain_value(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain_value(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain_value(dump())
    return f"<{type(value).__name__}>"


def mark_final_text(chat: list[Message], key: str, source: str) -> str:
    """Put `CONTINUE_MARK` behind the text under `key` of the last message, in place.

    Args:
        chat: Messages from `checked_messages`.
        key: `content`, or the name of another text of a message.
        source: The template; one that never names the key cannot show its text.

    Returns:
        The text as it was.

    Raises:
        InvalidArgument: The last message has no text there, or the template does not read it.
    """
    field, final = f"messages[{len(chat) - 1}].{key}", chat[-1]
    text = final.get(key)
    keys = [key]
    if key in _REASONING_KEYS:  # one text under several names: whichever the template reads
        keys = [name for name in _REASONING_KEYS if final.get(name) == text]
    if text is not None and not any(name in source for name in keys):
        raise InvalidArgument(field, "is not read by the chat template, so it cannot be continued")
    if isinstance(text, str):
        final.update(dict.fromkeys(keys, text + CONTINUE_MARK))
        return text
    for part in reversed(text if isinstance(text, list | tuple) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            last: str = part["text"]
            part["text"] = last + CONTINUE_MARK
            return last
    raise InvalidArgument(field, "has no text that could be continued")
