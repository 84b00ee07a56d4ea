"""Calls as tags: ``<function=NAME><parameter=KEY>VALUE</parameter></function>``, or keys and values."""
# ruff: noqa: RUF001 -- marks of some models hold a wide bar

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed
from llm_stack_server.output_formats.reader import Reader, Reading


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one syntax.

    Attributes:
        name_start: Before the tool's name; "" where it follows directly.
        name_end: Behind it.
        call_end: Behind the last argument; "" where the section's own end tells.
        key_start: Before an argument's name.
        key_end: Behind it, up to its value.
        value_end: Behind its value.
        trims_lines: A newline after ``key_end`` and one before ``value_end`` are layout.
        says_string: Behind the argument's name stands ``string="true">`` or ``string="false">``, which tells
            text from JSON.
        has_cdata: A value may stand in ``<![CDATA[...]]>``, and holds any text there.
    """

    name_start: str
    name_end: str
    call_end: str
    key_start: str
    key_end: str
    value_end: str
    trims_lines: bool = True
    says_string: bool = False
    has_cdata: bool = False

    def behind_start(self) -> Tags:
        """The same where ``name_start`` was read already, as the mark of a section."""
        return replace(self, name_start="")


QWEN_CODER = Tags("<function=", ">", "</function>", "<parameter=", ">", "</parameter>")
MINIMAX = Tags(
    '<invoke name="', '">', "</invoke>", '<parameter name="', '">', "</parameter>", trims_lines=False
)
MINICPM = Tags(
    '<function name="',
    '">',
    "</function>",
    '<param name="',
    '">',
    "</param>",
    trims_lines=False,
    has_cdata=True,
)
DEEPSEEK_DSML = Tags(
    '<｜DSML｜invoke name="',
    '">',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="',
    '" string="',
    "</｜DSML｜parameter>",
    trims_lines=False,
    says_string=True,
)


def tagged_call(reader: Reader, calls: Calls, tags: Tags) -> Reading[None]:
    """One call. Each argument is told when it is whole: its type needs all of it.

    Raises:
        Malformed: tags are missing.
    """
    yield from reader.skip_space()
    if not (yield from reader.accept(tags.name_start)):
        raise Malformed("a call was expected")
    name = (yield from _text(reader, tags.name_end)).strip().strip("\"'")
    if not name:
        raise Malformed("a call without a name")
    calls.start(name)
    separator = "{"
    while (yield from _another(reader, tags)):
        key = (yield from _text(reader, tags.key_end)).strip().strip("\"'")
        flag = (yield from _text(reader, '">')) if tags.says_string else ""
        text = yield from _value_text(reader, tags)
        if tags.trims_lines:
            text = text.removeprefix("\n").removesuffix("\n")
        value = text if flag == "true" else calls.tools.value(name, key, text)
        calls.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {_json(value)}")
        separator = ", "
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def keys_and_values(reader: Reader, calls: Calls, suffix: str = "") -> Reading[None]:
    """GLM's: the name, a newline, then ``<arg_key>K</arg_key><arg_value>V</arg_value>`` pairs.

    Args:
        reader: The text.
        calls: Takes the call.
        suffix: Of every tag's name; with one, ``<tool_sep>`` stands behind the tool's name (Hunyuan 3).

    Raises:
        Malformed: tags are missing, or there is no name.
    """
    yield from reader.skip_space()
    name = (yield from reader.while_in(lambda char: char not in "\n<")).strip()
    if not name:
        raise Malformed("a call without a name")
    calls.start(name)
    separator = "{"
    if suffix:
        yield from reader.accept(f"<tool_sep{suffix}>")
    yield from reader.skip_space()
    while (yield from reader.accept(f"<arg_key{suffix}>")):
        key = (yield from _text(reader, f"</arg_key{suffix}>")).strip()
        yield from reader.skip_space()
        if not (yield from reader.accept(f"<arg_value{suffix}>")):
            raise Malformed("a value was expected")
        value = calls.tools.value(name, key, (yield from _text(reader, f"</arg_value{suffix}>")))
        calls.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {_json(value)}")
        separator = ", "
        yield from reader.skip_space()
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _value_text(reader: Reader, tags: Tags) -> Reading[str]:
    """What stands before ``value_end``, which is read too."""
    if not tags.has_cdata or not (yield from reader.accept("<![CDATA[")):
        return (yield from _text(reader, tags.value_end))
    text = yield from _text(reader, "]]>")
    yield from reader.skip_space()
    if not (yield from reader.accept(tags.value_end)):
        raise Malformed("the end of an argument was expected")
    return text


def _another(reader: Reader, tags: Tags) -> Reading[bool]:
    yield from reader.skip_space()
    if (yield from reader.accept(tags.key_start)):
        return True
    if (yield from reader.accept(tags.call_end)):
        return False
    raise Malformed("an argument or the end of the call was expected")


def _text(reader: Reader, end: str) -> Reading[str]:
    parts: list[str] = []
    if (yield from reader.until((end,), parts.append)) is None:
        raise Malformed("the text ends within a tag")
    return "".join(parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
