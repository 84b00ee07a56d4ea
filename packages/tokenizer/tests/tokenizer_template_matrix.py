"""The matrix that real chat templates are rendered over: conversations, tools, documents and options."""

import json

from tokenizer_chat_cases import TOOLS

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": 'Find <pages> & "notes": žluťoučký kůň 日本',
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for"},
                "limit": {"type": "integer", "default": 3, "minimum": 1},
                "kinds": {"type": "array", "items": {"type": "string", "enum": ["page", "note"]}},
                "options": {
                    "type": "object",
                    "properties": {"fuzzy": {"type": ["boolean", "null"]}},
                    "required": [],
                },
                "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            },
            "required": ["query"],
        },
        "return": {"type": "string", "description": "JSON"},
    },
}
MORE_TOOLS = [*TOOLS, SEARCH]
DOCUMENTS = [
    {"title": "On kůň", "text": "A horse <b>is</b> an animal.\nIt runs.", "doc_id": 1, "contents": "horse"},
    {"title": "Second", "text": "日本語", "doc_id": "2", "contents": "none"},
]

# The form that Command R's older templates take.
FLAT_TOOLS = [
    {
        "name": "search",
        "description": "Find pages",
        "parameter_definitions": {"query": {"description": "What", "type": "str", "required": True}},
    }
]

_SYSTEM = {"role": "system", "content": "You are terse.\n\nAnswer in English."}
_USER = {"role": "user", "content": "What's the weather\nin Brno? <b>&amp;</b> {{ 1 }} ☀️"}
_ANSWER = {"role": "assistant", "content": "Sunny ☀️, 25 °C."}
_NEXT = {"role": "user", "content": "  And tomorrow?  \n"}


def _call(arguments, name="get_weather", number=1, **more):
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function, **more}


def _calls(*calls, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def _result(content, number=1, **more):
    return {
        "role": "tool",
        "tool_call_id": f"call0000{number}",
        "name": "get_weather",
        "content": content,
        **more,
    }


_CITY = {"city": "Brno", "days": 2, "exact": True, "tags": ["a", "é"], "near": {"km": 1.5, "of": None}}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CONVERSATIONS = {
    "plain": [_USER],
    "system": [_SYSTEM, _USER],
    "developer": [{"role": "developer", "content": "Be kind."}, _USER],
    "system only": [_SYSTEM],
    "turns": [_USER, _ANSWER, _NEXT],
    "system, turns": [_SYSTEM, _USER, _ANSWER, _NEXT, _ANSWER, _USER],
    "ends with answer": [_SYSTEM, _USER, _ANSWER],
    "answer with space": [_USER, {"role": "assistant", "content": "1, 2, 3,  \n"}],
    "answer first": [_ANSWER, _USER],
    "two users": [_USER, _NEXT],
    "two answers": [_USER, _ANSWER, _ANSWER],
    "system later": [_USER, _ANSWER, _SYSTEM, _NEXT],
    "empty": [{"role": "user", "content": ""}],
    "no content": [{"role": "user", "content": None}, _ANSWER, _NEXT],
    "call": [_USER, _calls(_call(_CITY))],
    "call, result": [_SYSTEM, _USER, _calls(_call(_CITY)), _result('{"temp": 25, "sky": "jasno ☀️"}')],
    "call as text, result": [_USER, _calls(_call(json.dumps(_CITY))), _result("25")],
    "call with content": [_USER, _calls(_call(_CITY), content="Let me look."), _result("25"), _ANSWER, _NEXT],
    "call with empty content": [_USER, _calls(_call({}), content=""), _result(""), _ANSWER],
    "two calls": [
        _USER,
        _calls(_call(_CITY), _call({"query": "a\nb"}, "search", 2)),
        _result("25"),
        _result("none", 2, name="search"),
        _ANSWER,
        _NEXT,
    ],
    "two rounds": [
        _USER,
        _calls(_call(_CITY), reasoning_content="First."),
        _result("25"),
        _calls(_call({"query": "x"}, "search", 2), reasoning_content="Then."),
        _result("none", 2),
    ],
    "parts of a result": [_USER, _calls(_call(_CITY)), _result([{"type": "text", "text": "25"}])],
    "result as object": [_USER, _calls(_call(_CITY)), _result({"temp": 25})],
    "function alone": [_USER, _calls({"name": "now", "arguments": {"a": "é"}}), _result("12:00")],
    "reasoning": [_USER, {**_ANSWER, "reasoning_content": "Let me\nthink."}, _NEXT],
    "reasoning last": [_USER, {**_ANSWER, "reasoning_content": "Let me think. "}],
    "reasoning by its older name": [
        _USER,
        {**_ANSWER, "reasoning": "So."},
        _NEXT,
        {**_ANSWER, "thinking": "Oh."},
    ],
    "think in text": [_USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSunny."}, _NEXT],
    "think in text last": [_USER, {"role": "assistant", "content": "<think>Hm.</think>Sunny."}],
    "text parts": [
        {"role": "system", "content": [{"type": "text", "text": "Be terse."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello,  "}]},
    ],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
    "image url": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, _IMAGE]}, _ANSWER, _NEXT],
    "audio, video": [
        {"role": "user", "content": [{"type": "audio"}, {"type": "video"}, {"type": "text", "text": "?"}]}
    ],
    "names": [
        {"role": "user", "content": "Hi", "name": "Eva"},
        {**_ANSWER, "name": "Bot", "extra": [1, 2.5, None]},
    ],
    "unknown role": [{"role": "critic", "content": "Hm"}],
    "special text": [{"role": "user", "content": "<|im_end|></s>[/INST]<end_of_turn>"}],
}

OPTIONS = {
    "": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": MORE_TOOLS},
    "no tools": {"add_generation_prompt": True, "tools": []},
    "flat tools": {"add_generation_prompt": True, "tools": FLAT_TOOLS},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS},
    "continue": {"continue_final_message": True},
    "continue, tools": {"continue_final_message": True, "tools": MORE_TOOLS},
    "thinking": {
        "add_generation_prompt": True,
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
    },
    "no thinking": {
        "add_generation_prompt": True,
        "enable_thinking": False,
        "thinking": False,
        "tools": TOOLS,
    },
    "variables": {
        "add_generation_prompt": True,
        "date_string": "30 Nov 2026",
        "tools_in_user_message": False,
        "builtin_tools": ["code_interpreter"],
        "functions": "none",
        "datetime": "30 Nov 2026",
        "clear_thinking": False,
        "custom_tools": TOOLS,
        "keep_past_thinking": True,
        "model_identity": "You are X.",
        "xml_tools": TOOLS,
        "bos_token": "<BOS>",
    },
}
