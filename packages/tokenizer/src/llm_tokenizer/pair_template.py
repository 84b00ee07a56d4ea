"""Owns how a tokenizer joins two texts into one sequence; knows nothing of how either is encoded.

Read from the post-processor of a `tokenizer.json`, as the `tokenizers` library applies it to a pair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from llm_tokenizer.errors import TokenizerFileError


@dataclass(frozen=True, slots=True)
class PairPiece:
    """A part of the joined sequence.

    Attributes:
        text: 0 for the first text, 1 for the second; None for tokens of the tokenizer's own.
        token_ids: Those tokens.
        token_type: The type of every token of the part.
    """

    text: int | None
    token_type: int
    token_ids: tuple[int, ...] = ()


_PLAIN = (PairPiece(0, 0), PairPiece(1, 1))


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The parts of the joined sequence, in order; each text is among them once."""

    pieces: tuple[PairPiece, ...] = _PLAIN

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> PairTemplate:
        """Reads a `tokenizer.json`, or that of a folder; without one, the texts stand one after the other.

        Raises:
            TokenizerFileError: The file is malformed.
        """
        where = Path(path)
        file = where / "tokenizer.json" if where.is_dir() else where
        if file.suffix != ".json" or not file.is_file():
            return cls()
        try:
            processor = json.loads(file.read_bytes()).get("post_processor")
            return cls(_pieces(processor) or _PLAIN)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise TokenizerFileError(f"{file}: malformed post_processor ({error!r})") from error

    @property
    def num_added(self) -> int:
        """Tokens that are added to those of the two texts."""
        return sum(len(piece.token_ids) for piece in self.pieces)

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Joins two texts, encoded without special tokens.

        Returns:
            The token ids and the types of the tokens.
        """
        ids: list[int] = []
        types: list[int] = []
        for piece in self.pieces:
            part = piece.token_ids if piece.text is None else (first, second)[piece.text]
            ids += part
            types += [piece.token_type] * len(part)
        return ids, types


def _pieces(processor: Mapping[str, Any] | None) -> tuple[PairPiece, ...] | None:
    if processor is None:
        return None
    match processor["type"]:
        case "TemplateProcessing":
            return _checked(tuple(_template_piece(item, processor) for item in processor["pair"]))
        case "BertProcessing":
            first, last = (int(processor["cls"][1]),), (int(processor["sep"][1]),)
            return (
                PairPiece(None, 0, first),
                PairPiece(0, 0),
                PairPiece(None, 0, last),
                PairPiece(1, 1),
                PairPiece(None, 1, last),
            )
        case "RobertaProcessing":
            first, last = (int(processor["cls"][1]),), (int(processor["sep"][1]),)
            return (
                PairPiece(None, 0, first),
                PairPiece(0, 0),
                PairPiece(None, 0, last + last),
                PairPiece(1, 0),
                PairPiece(None, 0, last),
            )
        case "Sequence":
            found = [_pieces(inner) for inner in processor["processors"]]
            return next((pieces for pieces in reversed(found) if pieces is not None), None)
    return None


def _template_piece(item: Mapping[str, Any], processor: Mapping[str, Any]) -> PairPiece:
    ((kind, content),) = item.items()
    token_type = int(content["type_id"])
    if kind == "Sequence":
        return PairPiece({"A": 0, "B": 1}[content["id"]], token_type)
    ids = processor["special_tokens"][content["id"]]["ids"]
    return PairPiece(None, token_type, tuple(int(token) for token in ids))


def _checked(pieces: tuple[PairPiece, ...]) -> tuple[PairPiece, ...]:
    if sorted(piece.text for piece in pieces if piece.text is not None) != [0, 1]:
        raise ValueError("the pair does not hold each text once")
    return pieces
