"""Calls as Python writes them: ``f(city="Paris", days=3)``. Read as literals, never evaluated."""

from __future__ import annotations

import ast
import json
import warnings

from llm_stack_server.output_formats.calls import Calls
from llm_stack_server.output_formats.json_text import Malformed
from llm_stack_server.output_formats.reader import Reader, Reading

_OPENING, _CLOSING = "([{", ")]}"
_WORDS = {"true": True, "false": False, "null": None}


def python_call_list(reader: Reader, calls: Calls) -> Reading[None]:
    """``[f(...), g(...)]``, or calls one after the other.

    Raises:
        Malformed: it is neither.
    """
    yield from reader.skip_space()
    is_list = yield from reader.accept("[")
    while True:
        yield from python_call(reader, calls)
        yield from reader.skip_space()
        if (yield from reader.accept(",")):
            continue
        if is_list:
            if (yield from reader.accept("]")):
                return
            raise Malformed("the end of the list was expected")
        following = yield from reader.peek()
        if not (following.isalpha() or following == "_"):
            return


def python_call(reader: Reader, calls: Calls) -> Reading[None]:
    """One call with keywords, told when it is whole.

    Raises:
        Malformed: it is none, or an argument is no literal.
    """
    yield from reader.skip_space()
    name = yield from reader.while_in(lambda char: char.isalnum() or char in "_.-")
    if not name or not (yield from reader.accept("(")):
        raise Malformed("a call was expected")
    inside = yield from _up_to_closing(reader)
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            call = ast.parse(f"f({inside})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise Malformed("a call takes keywords")
        arguments = {str(k.arg): _literal(k.value) for k in call.keywords}
        json.dumps(arguments, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise Malformed("an argument is no literal") from None
    calls.whole(name, arguments)


def _literal(node: ast.expr) -> object:
    """A literal; ``true``, ``false`` and ``null`` count too."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(part) for part in node.elts]
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            raise ValueError("unpacking")
        return {ast.literal_eval(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k}
    return ast.literal_eval(node)


def _up_to_closing(reader: Reader) -> Reading[str]:
    """What stands before the bracket that closes the call, which is read too."""
    parts: list[str] = []
    depth = 0
    quote = ""
    while (yield from reader.available()):
        char = reader.take()
        if quote:
            if char == "\\":
                parts.append(char)
                if not (yield from reader.available()):
                    break
                char = reader.take()
            elif char == quote:
                quote = ""
            elif char == "\n":  # models break lines within strings
                char = "\\n"
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            if depth == 0:
                return "".join(parts)
            depth -= 1
        parts.append(char)
    raise Malformed("the text ends within a call")
