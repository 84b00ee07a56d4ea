"""Reasoning and tool calls out of text: every format, any cut, broken calls, types of arguments."""
# ruff: noqa: RUF001, E501 -- what models write, as they write it

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.formats import FORMATS, format_named, format_of_template
from llm_stack_server.output_formats.parser import Thinking, thinking_after
from server_real_templates import ARGUMENTS, read, template, written_turn

TYPED = Tools(
    {
        "f": {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "b": {"type": ["string", "null"]},
                "c": {"$ref": "#/$defs/box"},
                "d": {"oneOf": [{"type": "number"}, {"type": "boolean"}]},
            },
            "$defs": {"box": {"type": "object"}},
        },
        "g": {},
    }
)
CALL = '{"name": "f", "arguments": {"a": 5, "b": "x}\\"]"}}'
F_ARGUMENTS = {"a": 5, "b": 'x}"]'}

# What models write, by format, with one call of f and F_ARGUMENTS where nothing else is said.
WRITTEN = {
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    '<|constrain|>json<|message|>{"a": 5, "b": "x}\\"]"}',
    "deepseek_v3": "<think>Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    '```json\n{"a": 5, "b": "x}\\"]"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v3_1": "<think>Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    '{"a": 5, "b": "x}\\"]"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_dsml": '<think>Hm.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter '
    'name="a" string="false">5</｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="true">x}"]'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "minimax_m2": '<think>Hm.</think>\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">5</parameter>\n'
    '<parameter name="b">x}"]</parameter>\n</invoke>\n</minimax:tool_call>',
    "apertus": '<|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{"f": {"a": 5, "b": "x}\\"]"}}]'
    "<|tools_suffix|>",
    "solar": "<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>f<|tool_call:args|>"
    '{"a": 5, "b": "x}\\"]"}<|tool_call:end|>',
    "tool_calls_tag": f"<think>Hm.</think><tool_calls>[{CALL}]</tool_calls>",
    "nemotron_v2": f"<think>Hm.</think><TOOLCALL>[{CALL}]</TOOLCALL>",
    "functionary": '<function=f>{"a": 5, "b": "x}\\"]"}</function>',
    "kimi_k2": "<think>Hm.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": 5, "b": "x}\\"]"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm": "<think>Hm.</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n"
    '<arg_key>b</arg_key>\n<arg_value>x}"]</arg_value>\n</tool_call>',
    "qwen3_coder": "<think>Hm.</think>\n<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n"
    '<parameter=b>\nx}"]\n</parameter>\n</function>\n</tool_call>',
    "command_r": '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": '
    '"f", "parameters": {"a": 5, "b": "x}\\"]"}}\n]<|END_ACTION|>',
    "mistral": '[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{"a": 5, "b": "x}\\"]"}',
    "granite": f"<think>Hm.</think><|tool_call|>[{CALL}]",
    "olmo": "<think>Hm.</think><function_calls>\nf(a=5, b='x}\"]')\n</function_calls>",
    "phi4_mini": f"functools[{CALL}]",
    "llama4_pythonic": "[f(a=5, b='x}\"]')]",
    "llama3_json": '{"name": "f", "parameters": {"a": 5, "b": "x}\\"]"}}',
    "hermes": f"<think>\nHm.\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>",
    "think": "<think>Hm.</think>\n\nSunny.",
    "minimax_m3": '<mm:think>Hm.</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>5'
    ']<]minimax[>[</a>]<]minimax[>[<b>x}"]]<]minimax[>[</b>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
    "kimi_k3": "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools"
    '<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>5<|close|>argument<|sep|>'
    '<|open|>argument key="b" type="string"<|sep|>x}"]<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    "<|close|>message<|sep|><|end_of_msg|>",
    "gemma4": '<|channel>thought\nHm.<channel|><|tool_call>call:f{a:5,b:<|"|>x}"]<|"|>}<tool_call|>',
    "hunyuan3": "<think:opensource>Hm.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>f"
    "<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>5</arg_value:opensource>\n"
    '<arg_key:opensource>b</arg_key:opensource>\n<arg_value:opensource>x}"]</arg_value:opensource>\n'
    "</tool_call:opensource>\n</tool_calls:opensource>",
    "seed_oss": "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=a>5</parameter>\n"
    '<parameter=b>x}"]</parameter>\n</function>\n</seed:tool_call>',
    "minicpm5": '<think>\nHm.\n</think>\n\n<function name="f"><param name="a">5</param><param name="b"><![CDATA[x}"]]]>'
    "</param></function>",
}
# Templates whose history shows a call as the model writes it.
REAL = [
    "ByteDance-Seed-OSS",
    "Kimi-K3",
    "google-gemma-4-31B-it",
    "openbmb-MiniCPM5-1B",
    "tencent-Hy3",
    "Apertus-8B-Instruct",
    "Bielik-11B-v3.0-Instruct",
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "LFM2.5-8B-A1B",
    "MiMo-VL",
    "MiniMax-M1",
    "MiniMax-M2",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "NVIDIA-Nemotron-Nano-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "deepseek-ai-DeepSeek-V4",
    "ibm-granite-granite-4.0",
    "inclusionai-ling-3.0-flash",
    "meetkai-functionary-medium-v3.1",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "moonshotai-Kimi-K2",
    "openai-gpt-oss-120b",
    "unsloth-Apriel-1.5",
    "unsloth-mistral-Devstral-Small-2507",
    "upstage-Solar-Open-100B",
]


def named(name):
    found = format_named(name)
    assert found is not None
    return found


def test_every_format_has_a_sample():
    assert set(WRITTEN) == {output_format.name for output_format in FORMATS}


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "think"])
def test_a_call_is_read(name):
    answer = read(named(name), WRITTEN[name], tools=TYPED)
    [(tool, arguments, is_whole)] = answer["calls"]
    assert (tool, json.loads(arguments), is_whole) == ("f", F_ARGUMENTS, True)
    assert answer["text"] == ""
    assert answer["reasoning"] == ("Hm." if "Hm." in WRITTEN[name] else "")


def test_thinking_alone_is_read():
    assert read(named("think"), WRITTEN["think"]) == {"text": "Sunny.", "reasoning": "Hm.", "calls": []}


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_any_cut_tells_the_same(data):
    """Also of broken answers: a sample cut short, or with a piece torn out."""
    name = data.draw(st.sampled_from(sorted(WRITTEN)))
    text = WRITTEN[name] + data.draw(st.sampled_from(["", "\n\nAnd more. ", WRITTEN[name], " <", "\n"]))
    begin = data.draw(st.integers(0, len(text)))
    text = text[:begin] + text[data.draw(st.sampled_from([begin, begin, begin + 3, len(text)])) :]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    tools = data.draw(st.sampled_from([TYPED, Tools()]))
    thinking = data.draw(st.sampled_from(list(Thinking)))
    whole = read(named(name), text, tools=tools, thinking=thinking)
    assert read(named(name), text, cuts, tools=tools, thinking=thinking) == whole
    assert read(named(name), text, 1, tools=tools, thinking=thinking) == whole


@pytest.mark.parametrize("model", REAL)
def test_real_templates(model):
    """The turn that a template shows in a history is read as the call it was made of."""
    source = template(model)
    output_format = format_of_template(source)
    assert output_format is not None
    text = written_turn(source)
    answer = read(output_format, text)
    [(tool, arguments, is_whole)] = answer["calls"]
    assert (tool, json.loads(arguments), is_whole) == ("search", ARGUMENTS, True)
    assert read(output_format, text, 1) == answer


def test_text_around_and_between_calls_stays():
    text = f"First.\n\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>\nLast. "
    answer = read(named("hermes"), text, 3, tools=TYPED)
    assert answer["text"] == "First.\n\nLast."
    assert [call[0] for call in answer["calls"]] == ["f", "f"]


@pytest.mark.parametrize(
    "text", ["a <tool_call> b", "<tool_call>\nnot json", "<tool_call>[1]</tool_call> ", "  x \n"]
)
def test_what_is_no_call_is_text(text):
    assert read(named("hermes"), text, 1) == {"text": text, "reasoning": "", "calls": []}


def test_without_tools_a_call_is_text():
    text = f"See: <tool_call>{CALL}</tool_call>"
    assert read(named("hermes"), text, 2, tools=Tools())["text"] == text


def test_a_call_that_is_cut_off_keeps_what_was_there():
    answer = read(named("hermes"), '<tool_call>{"name": "f", "arguments": {"a": 5, "b', 1, tools=TYPED)
    assert answer == {"text": "", "reasoning": "", "calls": [["f", '{"a": 5, "b', False]]}


def test_arguments_before_the_name_and_arguments_as_text():
    early = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
    assert read(named("hermes"), early, 1)["calls"] == [["f", '{"a": 1}', True]]
    as_text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read(named("hermes"), as_text, 1)["calls"] == [["f", '{"a": 1}', True]]
    without = '<tool_call>{"name": "f"}</tool_call>'
    assert read(named("hermes"), without, 1)["calls"] == [["f", "{}", True]]


def qwen_call(**values):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"a": "5", "b": "4", "c": '{"k": 1}', "d": "true"}, {"a": 5, "b": "4", "c": {"k": 1}, "d": True}),
        ({"a": "null", "b": "null", "d": "1.5"}, {"a": None, "b": None, "d": 1.5}),
        ({"a": "five", "c": "{'k': None}", "d": "NaN"}, {"a": "five", "c": {"k": None}, "d": "NaN"}),
        ({"x": "007", "y": "[1, 2]", "b": "true"}, {"x": "007", "y": [1, 2], "b": "true"}),
        ({"a": "1e999", "c": "{1, 2}"}, {"a": "1e999", "c": "{1, 2}"}),
    ],
)
def test_arguments_take_the_types_of_their_schema(written, meant):
    [(_, arguments, _)] = read(named("qwen3_coder"), qwen_call(**written), 2, tools=TYPED)["calls"]
    assert json.loads(arguments) == meant


def test_nothing_is_evaluated(tmp_path):
    canary = tmp_path / "canary"
    code = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    [(_, arguments, _)] = read(named("qwen3_coder"), qwen_call(c=code), tools=TYPED)["calls"]
    assert json.loads(arguments) == {"c": code}
    answer = read(named("llama4_pythonic"), f"[f(c={code})]", tools=TYPED)
    assert answer["calls"] == []
    assert not canary.exists()


@pytest.mark.parametrize("line", ["left <think> right", "left <think> right </think> x", "`<think>`"])
def test_a_think_tag_in_prose_is_text(line):
    assert read(named("hermes"), line, 1)["text"] == line
    assert read(named("hermes"), f"<think>{line}", 1, thinking=Thinking.CLOSED)["text"] == f"<think>{line}"


def test_thinking_that_the_prompt_opened():
    for size in (0, 1, 4):
        answer = read(named("think"), "\nHm.\n</think>\n\nYes.", size, thinking=Thinking.OPEN)
        assert answer == {"text": "Yes.", "reasoning": "Hm.", "calls": []}
        cut = read(named("think"), "Hm, let me", size, thinking=Thinking.OPEN)
        assert cut == {"text": "", "reasoning": "Hm, let me", "calls": []}


def test_the_prompt_tells_of_thinking():
    hermes = named("hermes")
    assert thinking_after(hermes, "<|im_start|>assistant\n<think>\n") is Thinking.OPEN
    assert thinking_after(hermes, "<|im_start|>assistant\n<think>\n\n</think>\n\n") is Thinking.CLOSED
    assert thinking_after(hermes, "say </think> or not\n<|im_start|>assistant\n") is Thinking.FREE
    assert thinking_after(named("phi4_mini"), "<think>") is Thinking.CLOSED


def test_depth_of_a_call_is_limited():
    text = '<tool_call>{"name": "f", "arguments": ' + "[" * 5000
    answer = read(named("hermes"), text, 997, tools=TYPED)
    assert answer["calls"][0][2] is False


def m3(name, inner):
    return f"]<]minimax[>[<{name}>{inner}]<]minimax[>[</{name}>"


def test_elements_within_elements_take_the_types_of_their_schemas():
    """What MiniMax M3's own template prints, which leaves null out."""
    assert format_of_template(template("MiniMax-M3")) is named("minimax_m3")
    inner = (
        m3("query", "Brno")
        + m3("limit", "5")
        + m3("kinds", m3("item", "page") + m3("item", "7"))
        + m3("options", m3("fuzzy", "true") + m3("deep", m3("x", "1")))
    )
    text = f']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">{inner}]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
    for size in (0, 1, 5):
        [(name, arguments, is_whole)] = read(named("minimax_m3"), f"</mm:think>{text}", size)["calls"]
        assert (name, is_whole) == ("search", True)
        assert json.loads(arguments) == {
            "query": "Brno",
            "limit": 5,
            "kinds": ["page", "7"],
            "options": {"fuzzy": True, "deep": {"x": "1"}},
        }


def test_an_answer_may_begin_with_the_end_of_no_thinking():
    answer = read(named("minimax_m3"), "</mm:think>Sunny.", 1)
    assert (answer["text"], answer["reasoning"]) == ("Sunny.", "")


def test_kimis_calls_may_hold_one_object():
    text = (
        '<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>json type="object"<|sep|>{"a": 5}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    )
    assert read(named("kimi_k3"), text, 3, tools=TYPED) == {
        "text": "I look.",
        "reasoning": "",
        "calls": [["f", '{"a": 5}', True]],
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", {}),
        ('a:[1,{k:<|"|>v<|"|>}],b:{<|"|>x<|"|>:true}', {"a": [1, {"k": "v"}], "b": {"x": True}}),
        ("a:None,b:1e5,c:NaN,d:some words", {"a": None, "b": 1e5, "c": "NaN", "d": "some words"}),
    ],
)
def test_gemmas_values(written, meant):
    [(_, arguments, _)] = read(
        named("gemma4"), f"<|tool_call>call:f{{{written}}}<tool_call|>", 1, tools=TYPED
    )["calls"]
    assert json.loads(arguments) == meant


def test_text_in_a_cdata_block_is_text():
    text = '<function name="f"><param name="b"><![CDATA[a </param> & <b>\n]]></param></function>'
    [(_, arguments, _)] = read(named("minicpm5"), text, 2, tools=TYPED)["calls"]
    assert json.loads(arguments) == {"b": "a </param> & <b>\n"}
