"""Fields that clients are known to send and that no schema declares: which are harmless, which are refused.

Rule: a field that would change the answer and that we cannot honour is refused by name. A field without
effect on the answer is accepted. Anything else is unknown: accepted, counted, and named in a response header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_stack_server.errors import UnsupportedField

# Accepted with any value: they never change the tokens.
NEUTRAL_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
    }
)

# Refused unless null or one of the listed values, which ask for what happens anyway.
REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    # Well-known extras of other servers.
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "thinking_token_budget": (),
    "chat_template": (),
    "documents": ([],),
    "cache_salt": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "typical_p": (1, 1.0),
    "top_a": (0, 0.0),
    "mirostat": (0,),
    "grammar": (),
    "json_schema": (),
    "regex": (),
}


def unknown_fields(extra: Mapping[str, Any], *, n: int = 1) -> list[str]:
    """Names in ``extra`` that no one here knows.

    Args:
        extra: The fields that the schema did not declare.
        n: The number of choices asked for; ``best_of`` may equal it.

    Raises:
        UnsupportedField: a known field asks for something that this server cannot do.
    """
    unknown = []
    for name, value in extra.items():
        if value is None or name in NEUTRAL_FIELDS:
            continue
        if name == "best_of":
            if isinstance(value, bool) or value != n:
                raise UnsupportedField("best_of", "best_of is supported only where it equals n")
        elif name in REFUSED_UNLESS:
            _check_harmless(name, value)
        else:
            unknown.append(name)
    return unknown


# The same of Anthropic's messages.
_MESSAGES_NEUTRAL = frozenset({"metadata", "betas", "cache_control", "anthropic_version", "user_profile_id"})
_MESSAGES_REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "mcp_servers": ([],),
    "container": (),
    "context_management": (),
    "output_config": ({},),
    "output_format": (),
    "inference_geo": (),
}


# The same of OpenAI's responses.
_RESPONSES_NEUTRAL = frozenset(
    {"user", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "client_metadata"}
)
_RESPONSES_REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "context_management": ([],),
}


def unknown_responses_fields(extra: Mapping[str, Any]) -> list[str]:
    """As `unknown_fields`, of a body of OpenAI's responses."""
    return _unknown(extra, _RESPONSES_NEUTRAL, _RESPONSES_REFUSED_UNLESS)


def unknown_message_api_fields(extra: Mapping[str, Any]) -> list[str]:
    """As `unknown_fields`, of a body of Anthropic's messages.

    Raises:
        UnsupportedField: a known field asks for something that this server cannot do.
    """
    return _unknown(extra, _MESSAGES_NEUTRAL, _MESSAGES_REFUSED_UNLESS)


def _unknown(
    extra: Mapping[str, Any], neutral: frozenset[str], refused: Mapping[str, tuple[Any, ...]]
) -> list[str]:
    unknown = []
    for name, value in extra.items():
        if value is None or name in neutral:
            continue
        if name in refused:
            _check_harmless(name, value, refused)
        else:
            unknown.append(name)
    return unknown


def _check_harmless(
    name: str, value: object, refused: Mapping[str, tuple[Any, ...]] = REFUSED_UNLESS
) -> None:
    harmless = refused[name]
    # By type too: True equals 1 in Python, but not in JSON.
    if not any(type(value) is type(allowed) and value == allowed for allowed in harmless):
        raise UnsupportedField(name)
