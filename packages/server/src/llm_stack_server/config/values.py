"""Turns a value of YAML into one of an option's type, or says why not. Never shows a secret."""

from __future__ import annotations

from typing import Any

import yaml

from llm_stack_server.cli.parser import suggestion
from llm_stack_server.config.options import Option

_PREFIX = "tag:yaml.org,2002:"
_MAX_SHOWN_CHARS = 40
_PLAIN = {"int": "the number", "float": "the number", "bool": "the truth value", "str": "the text"}
_TRUTH = {"true": True, "false": False}
_EXPECTED = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class WrongValue(Exception):
    """A value is none of its option's; the message says what was expected and what was found."""


def value_of(node: yaml.Node, option: Option) -> Any:  # noqa: ANN401 -- of the option's type
    """The value.

    Raises:
        WrongValue: it has another type than the option, or is none of its choices.
    """
    if option.is_optional and _kind(node) == "null":
        return None
    if not option.is_list:
        return _single(node, option, _expected(option))
    expected = f"a list of {option.type_name.removeprefix('list of ')}, such as [first, second]"
    if not isinstance(node, yaml.SequenceNode) or _kind(node) != "seq":
        raise WrongValue(f"must be {expected}, got {_shown(node, option)}")
    return tuple(_single(item, option, expected) for item in node.value)


def _single(node: yaml.Node, option: Option, expected: str) -> Any:  # noqa: ANN401 -- of the option's type
    kind = _kind(node)
    fits = {str: ("str",), int: ("int",), float: ("float", "int"), bool: ("bool",)}[option.kind]
    if not isinstance(node, yaml.ScalarNode) or kind not in fits:
        hint = "; write it in quotes" if option.kind is str and kind in ("int", "float", "bool") else ""
        if kind == "null" and not option.is_list:
            hint = "; leave it out for the default"
        raise WrongValue(f"must be {expected}, got {_shown(node, option)}{hint}")
    if option.kind is str:
        return _chosen(node.value, option)
    try:
        return _TRUTH[node.value.lower()] if option.kind is bool else option.kind(node.value.replace("_", ""))
    except (KeyError, ValueError):  # a tag in the file says a type that the words are none of
        raise WrongValue(f"must be {expected}") from None


def _chosen(text: str, option: Option) -> str:
    if option.choices and text not in option.choices:
        near = suggestion(text, option.choices)
        raise WrongValue(f"must be one of {', '.join(option.choices)}, got {text[:_MAX_SHOWN_CHARS]!r}{near}")
    return text


def _kind(node: yaml.Node) -> str:
    """The last part of a standard tag; other tags whole."""
    tag = str(node.tag)
    return tag.removeprefix(_PREFIX)


def _expected(option: Option) -> str:
    return _EXPECTED[option.kind] + (" or null" if option.is_optional else "")


def _shown(node: yaml.Node, option: Option) -> str:
    kind = _kind(node)
    if kind == "null":
        return "nothing"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if kind not in _PLAIN:
        return f"the tag {kind[:_MAX_SHOWN_CHARS]}"
    if option.is_secret:
        return _PLAIN[kind]
    text = node.value[:_MAX_SHOWN_CHARS]
    return f"{_PLAIN[kind]} {text!r}" if kind == "str" else f"{_PLAIN[kind]} {text}"
