"""Valid requests of every route, from which mutations start. Knows nothing of mutations or of sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STORED = "resp_" + "0" * 32  # stands for a stored response until the request is sent
_USER = [{"role": "user", "content": "Say hi to Zoë."}]
_TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Ōsaka"]}, "days": {"type": "integer"}},
    "required": ["city"],
}
_PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}, "required": ["name"]}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}


@dataclass(frozen=True, slots=True)
class Seed:
    """One valid request.

    Attributes:
        method: HTTP method.
        path: With query, where it has one.
        body: JSON, or None without a body.
        weight: How often it is taken, relative to others.
        accept: The header, where the route wants one.
    """

    method: str
    path: str
    body: dict[str, Any] | None = None
    weight: int = 2
    accept: str = ""


def seeds(model: str) -> list[Seed]:
    """The valid requests of a server that serves ``model``."""
    chat = {"model": model, "messages": _USER, "max_tokens": 2}
    text = {"model": model, "prompt": "The capital of", "max_tokens": 2}
    claude = {"model": model, "messages": _USER, "max_tokens": 2}
    response = {"model": model, "input": "Hi", "max_output_tokens": 2, "store": False}
    vectors = {"model": model, "input": ["the cat", "a dog"]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    functions = [
        {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": _TOOL}}
    ]
    return [
        *_chat(chat, functions, options),
        *_completions(text, options),
        *_messages(claude),
        *_responses(response),
        *_vectors(vectors, model),
        *_others(model),
    ]


def _chat(chat: dict[str, Any], functions: list[dict[str, Any]], options: dict[str, Any]) -> list[Seed]:
    path = "/v1/chat/completions"
    sampling = {
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "min_tokens": 1,
        "stop": ["\n\n", "END"],
        "stop_token_ids": [5],
        "ignore_eos": False,
        "logit_bias": {"10": -5, "11": 2.5},
        "logprobs": True,
        "top_logprobs": 3,
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
        "priority": 1,
        "cache_salt": "salt",
        "user": "u",
        "metadata": {"a": "b"},
        "reasoning_effort": "none",
        "chat_template_kwargs": {"x": 1},
        "add_generation_prompt": True,
        "continue_final_message": False,
    }
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON, "strict": True}}
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
        {"role": "user", "content": "Thanks"},
    ]
    tools = {"tools": functions, "tool_choice": "auto", "parallel_tool_calls": True}
    return [
        Seed("POST", path, chat, 4),
        Seed("POST", path, chat | options, 4),
        Seed("POST", path, chat | sampling, 6),
        Seed("POST", path, chat | sampling | options),
        Seed("POST", path, chat | {"response_format": schema}, 4),
        Seed("POST", path, chat | {"structured_outputs": {"regex": "[ab]{1,3}"}}),
        Seed("POST", path, chat | {"structured_outputs": {"choice": ["yes", "no"]}}),
        Seed("POST", path, chat | {"guided_grammar": 'start: "a" | "b" start'}),
        Seed("POST", path, chat | {"guided_json": _PERSON, "guided_decoding_backend": "xgrammar"}),
        Seed("POST", path, chat | {"messages": turns}, 4),
        Seed("POST", path, chat | {"messages": turns} | tools, 4),
        Seed("POST", path, chat | tools | options),
    ]


def _completions(text: dict[str, Any], options: dict[str, Any]) -> list[Seed]:
    path = "/v1/completions"
    return [
        Seed("POST", path, text, 4),
        Seed("POST", path, text | options, 4),
        Seed("POST", path, text | {"prompt": ["One", "Two"], "n": 2, "logprobs": 2, "echo": True}),
        Seed("POST", path, text | {"prompt": [1, 2, 3], "add_special_tokens": False}),
        Seed("POST", path, text | {"prompt": [[1, 2], [3]], "stop": "x", "best_of": 1, "suffix": None}),
    ]


def _messages(claude: dict[str, Any]) -> list[Seed]:
    blocks = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Sunny"}]},
    ]
    tools = [{"name": "weather", "description": "Tells.", "input_schema": _TOOL}]
    full = {
        "system": [{"type": "text", "text": "Be kind."}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "disabled"},
    }
    counted = {name: value for name, value in claude.items() if name != "max_tokens"}
    return [
        Seed("POST", "/v1/messages", claude, 4),
        Seed("POST", "/v1/messages", claude | full | {"stream": True}, 4),
        Seed("POST", "/v1/messages", claude | {"messages": blocks, "tools": tools}, 4),
        Seed("POST", "/v1/messages", claude | {"tools": tools, "tool_choice": {"type": "any"}}),
        Seed("POST", "/v1/messages/count_tokens", counted | {"messages": blocks, "tools": tools}, 4),
    ]


def _responses(response: dict[str, Any]) -> list[Seed]:
    path = "/v1/responses"
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Sunny"},
    ]
    tools = [{"type": "function", "name": "weather", "parameters": _TOOL}]
    full = {
        "instructions": "Be kind.",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "json_schema", "name": "p", "schema": _PERSON}},
        "truncation": "disabled",
        "metadata": {"a": "b"},
        "seed": 3,
    }
    return [
        Seed("POST", path, response, 4),
        Seed("POST", path, response | {"stream": True}, 4),
        Seed("POST", path, response | full, 4),
        Seed("POST", path, response | {"input": items, "tools": tools, "tool_choice": "auto"}, 4),
        Seed("POST", path, response | {"previous_response_id": STORED}),
        Seed("POST", path, response | {"store": True, "background": True}, 1),
        Seed("GET", f"{path}/{STORED}"),
        Seed("GET", f"{path}/{STORED}/input_items"),
        Seed("POST", f"{path}/{STORED}/cancel", None),
        Seed("DELETE", f"{path}/{'resp_' + '1' * 32}", None),
    ]


def _vectors(vectors: dict[str, Any], model: str) -> list[Seed]:
    score = {"model": model, "text_1": "the cat", "text_2": ["a dog", "the mat"]}
    rerank = {"model": model, "query": "cat", "documents": ["a dog", {"text": "mat"}], "top_n": 1}
    full = {"encoding_format": "base64", "dimensions": 96, "normalize": True, "truncate_prompt_tokens": 8}
    return [
        Seed("POST", "/v1/embeddings", vectors, 4),
        Seed("POST", "/v1/embeddings", vectors | full, 4),
        Seed("POST", "/v1/embeddings", vectors | {"input": [[4, 5], [6]]}),
        Seed("POST", "/pooling", vectors | {"task": "token_embed"}),
        Seed("POST", "/classify", vectors),
        Seed("POST", "/v1/score", score, 4),
        Seed("POST", "/score", score, 1),
        Seed("POST", "/v1/rerank", rerank | {"return_documents": True}, 4),
        Seed("POST", "/v2/rerank", rerank, 1),
        Seed("POST", "/rerank", rerank, 1),
    ]


def _others(model: str) -> list[Seed]:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "count_tokens", "arguments": {"text": "hi"}},
    }
    accept = "application/json, text/event-stream"
    return [
        Seed("POST", "/tokenize", {"model": model, "prompt": "Grüße", "return_token_strs": True}, 4),
        Seed("POST", "/tokenize", {"model": model, "messages": _USER, "add_generation_prompt": True}),
        Seed("POST", "/detokenize", {"model": model, "tokens": [1, 2, 3], "skip_special_tokens": True}, 4),
        Seed("POST", "/mcp", call, 4, accept),
        Seed("POST", "/mcp", {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}, 2, accept),
        Seed("POST", "/v1/audio/transcriptions", {"model": model}, 1),
        Seed("GET", "/v1/models"),
        Seed("GET", f"/v1/models/{model}"),
        Seed("GET", "/health", weight=1),
        Seed("GET", "/health/live", weight=1),
        Seed("GET", "/health/ready", weight=1),
        Seed("GET", "/metrics", weight=1),
        Seed("GET", "/version", weight=1),
        Seed("GET", "/openapi.json", weight=1),
        Seed("GET", "/", weight=1),
        Seed("GET", "/v1/nothing/here"),
    ]
