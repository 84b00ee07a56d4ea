"""What a look at the machine finds, one thing at a time. Knows nothing of what is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        section: What it belongs to, such as ``memory``.
        name: What it is.
        value: What was found, for a person.
        level: ``warning``: it works, but slower or less than it could. ``broken``: it does not work.
        advice: What to do about it; empty where nothing need be done.
    """

    section: str
    name: str
    value: str
    level: Level = "ok"
    advice: str = ""
