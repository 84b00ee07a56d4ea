"""Keeps what a client writes from being read as a model's special tokens. Knows nothing of routes.

A chat template prints the turns as one text, whose marks are encoded as special tokens. A mark that a user
typed must not become one, or the user could end the turn and speak for the system. So marks in the turns give
way to stand-ins before the template prints them; the printed text is encoded around these, and each mark as
plain text.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache

from llm_stack_server.engine_port import TextCodec
from llm_stack_server.errors import InvalidField


@lru_cache(maxsize=8)
def _marks_of(codec: TextCodec) -> re.Pattern[str] | None:
    """Finds any special token's spelling, the longest first; None where the model has none."""
    spellings = {
        codec.token_bytes(token).decode("utf-8", errors="ignore") for token in codec.special_token_ids
    }
    longest_first = sorted(filter(None, spellings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class PlainMarks:
    """The marks that clients wrote into the turns of one prompt."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._pattern = _marks_of(codec)
        # Nobody can write a stand-in that is drawn afterwards. Templates escape no letters or digits.
        self._stand_in = f"q{secrets.token_hex(12)}q"
        self._found: list[str] = []

    def hide(self, text: str) -> str:
        """``text`` with a stand-in for each mark."""
        return text if self._pattern is None else self._pattern.sub(self._take, text)

    def _take(self, match: re.Match[str]) -> str:
        self._found.append(match[0])
        return f"{self._stand_in}{len(self._found) - 1}z"

    def encode(self, printed: str) -> tuple[list[int], str]:
        """Token ids of what the template printed, and its text with the marks back in place.

        Raises:
            InvalidField: the template changed a stand-in, so that a mark cannot be put back.
        """
        if not self._found:
            # The template writes the start token itself.
            return self._codec.encode(printed, add_special_tokens=False), printed
        ids: list[int] = []
        texts: list[str] = []
        for place, piece in enumerate(re.split(f"{self._stand_in}([0-9]+)z", printed)):
            is_mark = place % 2 == 1
            text = self._found[int(piece)] if is_mark else piece
            if not is_mark and self._stand_in in piece.lower():
                raise InvalidField(
                    "messages", "messages: the chat template cannot show the text of a special token"
                )
            texts.append(text)
            if text:
                ids += self._codec.encode(text, add_special_tokens=False, allow_special=not is_mark)
        return ids, "".join(texts)
