"""The formats by name, as data. A new one is an entry here, and a syntax only where none reads its calls."""
# ruff: noqa: RUF001 -- marks of some models hold a wide bar

from __future__ import annotations

from functools import partial

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.format import Bare, DemandedCalls, Format, Section
from llm_stack_server.output_formats.reader import Reader, Reading
from llm_stack_server.output_formats.syntaxes.braced_calls import braced_call
from llm_stack_server.output_formats.syntaxes.element_calls import NAMESPACE, kimi_k3_call, minimax_m3_call
from llm_stack_server.output_formats.syntaxes.harmony import harmony_answer
from llm_stack_server.output_formats.syntaxes.headed_calls import Heading, headed_call
from llm_stack_server.output_formats.syntaxes.json_calls import (
    json_call,
    json_call_list,
    json_calls_by_name,
    json_calls_in_a_row,
)
from llm_stack_server.output_formats.syntaxes.python_calls import python_call_list
from llm_stack_server.output_formats.syntaxes.xml_calls import (
    DEEPSEEK_DSML,
    MINICPM,
    MINIMAX,
    QWEN_CODER,
    keys_and_values,
    tagged_call,
)

_THINK = ("<think>", "</think>")


def _mistral(reader: Reader, calls: Calls) -> Reading[None]:
    """A list of objects (up to 2024), or ``NAME[ARGS]{...}`` (since)."""
    yield from reader.skip_space()
    if (yield from reader.peek()) == "[":
        yield from json_call_list(reader, calls)
    else:
        yield from headed_call(reader, calls, Heading("[ARGS]", id_separators=("[CALL_ID]",)))


def _json_or_tags(reader: Reader, calls: Calls) -> Reading[None]:
    """What stands in ``<tool_call>``: an object, or the tags of Qwen3-Coder."""
    yield from reader.skip_space()
    if (yield from reader.peek()) == "<":
        yield from tagged_call(reader, calls, QWEN_CODER)
    else:
        yield from json_call(reader, calls)


FORMATS: tuple[Format, ...] = (
    Format(
        name="harmony",
        families="gpt-oss",
        answer=harmony_answer,
        thinking_end="<|end|><|start|>assistant<|channel|>final<|message|>",
        signs=(("<|channel|>", "<|message|>"),),
    ),
    Format(
        name="deepseek_v3",
        families="DeepSeek V3 and R1",
        reasoning=_THINK,
        sections=(
            Section(
                "<｜tool▁call▁begin｜>",
                partial(headed_call, heading=Heading("\n", kind_separator="<｜tool▁sep｜>", is_fenced=True)),
                ("<｜tool▁call▁end｜>",),
            ),
        ),
        layout=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        calls_end_reasoning=True,
        signs=(("<｜tool▁calls▁begin｜>", "```json"),),
    ),
    Format(
        name="deepseek_v3_1",
        families="DeepSeek V3.1",
        reasoning=_THINK,
        sections=(
            Section(
                "<｜tool▁call▁begin｜>",
                partial(headed_call, heading=Heading("<｜tool▁sep｜>")),
                ("<｜tool▁call▁end｜>",),
            ),
        ),
        layout=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        calls_end_reasoning=True,
        signs=(("<｜tool▁calls▁begin｜>",),),
    ),
    Format(
        name="deepseek_dsml",
        families="DeepSeek V3.2 and V4",
        reasoning=_THINK,
        sections=(
            Section('<｜DSML｜invoke name="', partial(tagged_call, tags=DEEPSEEK_DSML.behind_start())),
        ),
        layout=(
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
            "<｜DSML｜tool_calls>",
            "</｜DSML｜tool_calls>",
        ),
        signs=(("｜DSML｜",),),
    ),
    Format(
        name="minimax_m3",
        families="MiniMax M3",
        reasoning=("<mm:think>", "</mm:think>"),
        sections=(Section(f'{NAMESPACE}<invoke name="', minimax_m3_call),),
        # An answer without thinking may begin with its end.
        layout=(f"{NAMESPACE}<tool_call>", f"{NAMESPACE}</tool_call>", "</mm:think>"),
        signs=(("<mm:think>",),),
    ),
    Format(
        name="kimi_k3",
        families="Kimi K3",
        reasoning=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        thinking_end="<|close|>think<|sep|><|open|>response<|sep|>",
        sections=(Section("<|open|>call", kimi_k3_call),),
        layout=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        signs=(("<|open|>", "<|sep|>"),),
    ),
    Format(
        name="gemma4",
        families="Gemma 4",
        reasoning=("<|channel>thought\n", "<channel|>"),
        sections=(Section("<|tool_call>", braced_call, ("<tool_call|>",)),),
        signs=(("<|tool_call>", "<tool_call|>"),),
    ),
    Format(
        name="hunyuan3",
        families="Hunyuan 3",
        reasoning=("<think:opensource>", "</think:opensource>"),
        sections=(
            Section(
                "<tool_call:opensource>",
                partial(keys_and_values, suffix=":opensource"),
                ("</tool_call:opensource>",),
            ),
        ),
        layout=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        signs=(("hy_Assistant", "':opensource'"),),
    ),
    Format(
        name="seed_oss",
        families="Seed-OSS",
        reasoning=("<seed:think>", "</seed:think>"),
        sections=(
            Section("<seed:tool_call>", partial(tagged_call, tags=QWEN_CODER), ("</seed:tool_call>",)),
        ),
        signs=(("<seed:tool_call>",),),
    ),
    Format(
        name="minicpm5",
        families="MiniCPM 5",
        reasoning=_THINK,
        sections=(Section('<function name="', partial(tagged_call, tags=MINICPM.behind_start())),),
        signs=(('<function name="', '<param name="'),),
    ),
    Format(
        name="minimax_m2",
        families="MiniMax M2",
        reasoning=_THINK,
        sections=(Section('<invoke name="', partial(tagged_call, tags=MINIMAX.behind_start())),),
        layout=("<minimax:tool_call>", "</minimax:tool_call>"),
        signs=(("<minimax:tool_call>", "<invoke name="),),
    ),
    Format(
        name="apertus",
        families="Apertus",
        sections=(Section("<|tools_prefix|>", json_calls_by_name, ("<|tools_suffix|>",)),),
        reasoning=("<|inner_prefix|>", "<|inner_suffix|>"),
        signs=(("<|tools_prefix|>",),),
    ),
    Format(
        name="solar",
        families="Solar Open",
        sections=(
            Section(
                "<|tool_call:begin|>",
                partial(
                    headed_call,
                    heading=Heading("<|tool_call:args|>", kind_separator="<|tool_call:name|>"),
                ),
                ("<|tool_call:end|>",),
            ),
        ),
        layout=("<|tool_calls|>",),
        signs=(("<|tool_call:begin|>",),),
    ),
    Format(
        name="tool_calls_tag",
        families="Apriel, MiniMax M1",
        reasoning=_THINK,
        sections=(Section("<tool_calls>", json_calls_in_a_row, ("</tool_calls>",)),),
        demanded=DemandedCalls(before="<tool_calls>[", behind="]</tool_calls>"),
        signs=(("<tool_calls>[",), ("<tool_calls>\\n",), ("<tool_calls>\n",)),
    ),
    Format(
        name="nemotron_v2",
        families="Nemotron Nano v2",
        reasoning=_THINK,
        sections=(Section("<TOOLCALL>", json_calls_in_a_row, ("</TOOLCALL>",)),),
        demanded=DemandedCalls(before="<TOOLCALL>[", behind="]</TOOLCALL>"),
        signs=(("<TOOLCALL>",),),
    ),
    Format(
        name="functionary",
        families="Functionary 3.1",
        sections=(
            Section("<function=", partial(headed_call, heading=Heading(">")), ("</function>",)),
            Section("<|python_tag|>", json_calls_in_a_row),
        ),
        signs=(("<function=", "</function>", "<|python_tag|>"),),
    ),
    Format(
        name="kimi_k2",
        families="Kimi K2",
        reasoning=_THINK,
        sections=(
            Section(
                "<|tool_call_begin|>",
                partial(headed_call, heading=Heading("<|tool_call_argument_begin|>", is_numbered=True)),
                ("<|tool_call_end|>",),
            ),
        ),
        layout=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        calls_end_reasoning=True,
        signs=(("<|tool_calls_section_begin|>",),),
    ),
    Format(
        name="glm",
        families="GLM 4.5, 4.6, 4.7",
        reasoning=_THINK,
        sections=(Section("<tool_call>", keys_and_values, ("</tool_call>",)),),
        signs=(("<tool_call>", "<arg_key>"),),
    ),
    Format(
        name="qwen3_coder",
        families="Qwen3-Coder, Qwen3.5",
        reasoning=_THINK,
        sections=(
            Section("<tool_call>", _json_or_tags, ("</tool_call>",)),
            Section("<function=", partial(tagged_call, tags=QWEN_CODER.behind_start()), ("</tool_call>",)),
        ),
        demanded=DemandedCalls(call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"),
        signs=(("<tool_call>", "<function="),),
    ),
    Format(
        name="command_r",
        families="Command R7B, Command A",
        reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
        sections=(Section("<|START_ACTION|>", json_call_list, ("<|END_ACTION|>",)),),
        layout=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        demanded=DemandedCalls(
            before="<|START_ACTION|>[",
            behind="]<|END_ACTION|>",
            name_key="tool_name",
            arguments_key="parameters",
        ),
        signs=(("<|START_ACTION|>",),),
    ),
    Format(
        name="mistral",
        families="Mistral and Magistral",
        reasoning=("[THINK]", "[/THINK]"),
        sections=(Section("[TOOL_CALLS]", _mistral),),
        short_call_ids=True,
        demanded=DemandedCalls(before="[TOOL_CALLS][", behind="]"),
        signs=(("[TOOL_CALLS]",),),
    ),
    Format(
        name="granite",
        families="Granite 3",
        reasoning=_THINK,
        sections=(Section("<|tool_call|>", json_call_list), Section("<tool_call>", json_call_list)),
        demanded=DemandedCalls(before="<|tool_call|>[", behind="]"),
        signs=(("<|tool_call|>",),),
    ),
    Format(
        name="olmo",
        families="Olmo 3",
        reasoning=_THINK,
        sections=(Section("<function_calls>", python_call_list, ("</function_calls>",)),),
        signs=(("<function_calls>",),),
    ),
    Format(
        name="phi4_mini",
        families="Phi-4-mini",
        sections=(
            Section("functools", json_call_list),
            Section("<|tool_call|>", json_call_list, ("<|/tool_call|>",)),
        ),
        demanded=DemandedCalls(before="functools[", behind="]"),
        signs=(("<|tool|>", "<|/tool|>"),),
    ),
    Format(
        name="llama4_pythonic",
        families="Llama 4, Llama 3.2 (small), LFM2",
        sections=(
            Section("<|python_start|>", python_call_list, ("<|python_end|>",)),
            Section("<|tool_call_start|>", python_call_list, ("<|tool_call_end|>",)),
        ),
        bare=Bare("[", python_call_list),
        signs=(("<|python_start|>",), ("<|tool_call_start|>",), ("func_name1(params_name1=",)),
    ),
    Format(
        name="llama3_json",
        families="Llama 3.1, 3.2, 3.3",
        sections=(Section("<|python_tag|>", json_calls_in_a_row),),
        bare=Bare("{", json_calls_in_a_row),
        demanded=DemandedCalls(separator="; ", arguments_key="parameters"),
        signs=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
    ),
    Format(
        name="hermes",
        families="Qwen 2.5, Qwen 3, Hermes, SmolLM3 and most models with <tool_call>",
        reasoning=_THINK,
        sections=(Section("<tool_call>", json_call, ("</tool_call>",)),),
        demanded=DemandedCalls(call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"),
        signs=(("<tool_call>",),),
    ),
    Format(name="think", families="models that only think aloud", reasoning=_THINK, signs=(("</think>",),)),
)
"""In the order in which a template is asked for their signs."""
FORMAT_NAMES = tuple(output_format.name for output_format in FORMATS)


def format_named(name: str) -> Format | None:
    """The format of that name."""
    return next((f for f in FORMATS if f.name == name), None)


def format_of_template(template: str) -> Format | None:
    """The format that a chat template shows signs of; None where it shows none: all is text then."""
    for output_format in FORMATS:
        if any(all(sign in template for sign in signs) for signs in output_format.signs):
            return output_format
    return None
