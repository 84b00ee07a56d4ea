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

# Extras of other servers, on every route. Refused unless null or one of the listed values, which ask for what
# happens anyway.
_OTHER_SERVERS: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "detokenize": (True,),
    "skip_detokenize": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "grammar": (),
    "ebnf": (),
    "json_schema": (),
    "regex": (),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "input_embeds": (),
    "return_hidden_states": (False,),
    "truncate_prompt_tokens": (),
    "thinking_token_budget": (),
    "chat_template": (),
    "documents": ([],),
    "cache_salt": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "repetition_detection": (),
    "typical_p": (1, 1.0),
    "top_a": (0, 0.0),
    "mirostat": (0,),
    # Serialized code, and adapters chosen by path.
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "custom_params": (),
    "lora_path": (),
    "lora_request": (),
    # Media beside the messages, and what only the server may know of it.
    "image_data": (),
    "audio_data": (),
    "video_data": (),
    "multi_modal_data": (),
    "multi_modal_uuids": (),
    "mm_hashes": (),
    "mm_placeholders": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "kv_transfer_params": (),
}

# The same of OpenAI's chat and completions.
REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    **_OTHER_SERVERS,
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
}

# Sampling fields of chat, where a route's own API has none: refused unless they ask for what happens anyway.
_CHAT_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "seed": (),
    "min_tokens": (0,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "max_completion_tokens": (),
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
_MESSAGES_NEUTRAL = frozenset({"metadata", "betas", "anthropic_version", "user_profile_id"})
_MESSAGES_REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    **_OTHER_SERVERS,
    **_CHAT_ONLY,
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
    **_OTHER_SERVERS,
    **_CHAT_ONLY,
    "max_tokens": (),
    "service_tier": ("auto", "default"),
    "conversation": (),
    "prompt": (),
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
