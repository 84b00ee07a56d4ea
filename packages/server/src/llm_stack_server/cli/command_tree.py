"""The commands and flags as data, read off the argument parser. Knows nothing of shells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

_HELP_CHARS = 100


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        names: All its spellings, such as ``-i`` and ``--input``.
        help: Its first sentence.
        takes_value: Whether a word follows it.
        choices: The words that may follow; empty where any may.
        repeats: Whether it may be given more than once.
    """

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    repeats: bool


@dataclass(frozen=True, slots=True)
class Node:
    """One command.

    Attributes:
        path: Its words, without the program's name.
        help: Its first sentence.
        flags: What it takes.
        words: The choices of its positional arguments; empty where they are free, as paths are.
        takes_words: Whether it has positional arguments at all.
        children: Its commands.
    """

    path: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    takes_words: bool
    children: tuple[Node, ...]

    def walk(self) -> Iterator[Node]:
        """This command and all below."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Node:
    """The command that ``parser`` parses, with all below."""
    flags, children, words, takes_words = [], [], [], False
    # argparse has no public way to list what was declared.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            children = [read_tree(child, (*path, name)) for name, child in action.choices.items()]
        elif action.option_strings:
            flags.append(_flag(action))
        else:
            takes_words = True
            words += [str(choice) for choice in action.choices or ()]
    return Node(
        path, _first_sentence(parser.description), tuple(flags), tuple(words), takes_words, tuple(children)
    )


def _flag(action: argparse.Action) -> Flag:
    choices = tuple(str(choice) for choice in action.choices or ())
    repeats = isinstance(action, argparse._AppendAction)
    help_text = _first_sentence(action.help)
    return Flag(tuple(action.option_strings), help_text, action.nargs != 0, choices, repeats)


def _first_sentence(text: str | None) -> str:
    if text is None or text == argparse.SUPPRESS:
        return ""
    first = " ".join(text.replace("%%", "%").split()).split(". ")[0].split(" (default")[0].rstrip(".")
    return first if len(first) <= _HELP_CHARS else first[: _HELP_CHARS - 3].rstrip() + "..."
