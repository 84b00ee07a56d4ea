"""One line on stderr for whoever started the server. Knows nothing of logging."""

from __future__ import annotations

import sys


def say(line: str, who: str = "llm-stack") -> None:
    """Tell it at once."""
    sys.stderr.write(f"{who}: {line}\n")
    sys.stderr.flush()
