"""The argument parser of all commands: short usage, whole flags, "did you mean". Knows no command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_CLOSE = 0.65  # below it a suggestion is a guess
_FEW_FLAGS = 2  # with --help; so many stand in the usage one by one


class Parser(argparse.ArgumentParser):
    """Parses strictly. A flag must be written whole, since a new one could make a beginning ambiguous."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 -- argparse's own
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(  # type: ignore[override]  # ours takes no other kind of namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, but what is unknown is told here, by the command that does not know it."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return known, unknown

    def format_usage(self) -> str:
        """One line, however many flags there are."""
        self._shorten_usage()
        return super().format_usage()

    def format_help(self) -> str:
        """The help, with a usage of one line."""
        self._shorten_usage()
        return super().format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 -- argparse's own
        """Refuse what is none of the choices, with the nearest one of them."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        hint = suggestion(str(value), names) or f" (choose from {', '.join(names)})"
        raise argparse.ArgumentError(action, f"there is no {str(value)[:60]!r}{hint}")

    def _unknown(self, arguments: Sequence[str]) -> str:
        first = next((argument for argument in arguments if argument.startswith("-")), arguments[0])
        name = first.split("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {name[:60]!r}"
        hint = suggestion(name, [flag for action in self._actions for flag in action.option_strings])
        return f"unknown flag {name[:60]}{hint or '; --help lists them'}"

    def _shorten_usage(self) -> None:
        if self.usage is not None:
            return
        optional = [action for action in self._actions if action.option_strings and not action.required]
        if len(optional) <= _FEW_FLAGS:
            return
        required = [action for action in self._actions if action.option_strings and action.required]
        free = [action for action in self._actions if not action.option_strings]
        words = [self.prog, *(_positional(action) for action in free)]
        words += [
            f"{action.option_strings[0]} {action.metavar or action.dest.upper()}" for action in required
        ]
        # Flags of this command stand before the word that begins another one.
        at = 1 if any(isinstance(action, argparse._SubParsersAction) for action in free) else len(words)
        words.insert(at, "[flags]")
        self.usage = " ".join(words).replace("%", "%%")


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` with the nearest name; empty where none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=_CLOSE)
    return f"; did you mean {near[0]}?" if near else ""


def _positional(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if isinstance(action, argparse._SubParsersAction):
        return f"{name} ..."
    return f"[{name}]" if action.nargs in ("?", "*") else name
