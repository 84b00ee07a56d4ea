"""Owns bare vocabulary files (tiktoken, tekken, SentencePiece): their kind, and the facts beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_tokenizer._native import NativeTokenizer, load_sentence_piece, load_tekken, load_tiktoken
from llm_tokenizer.arguments import check_text, not_unicode
from llm_tokenizer.errors import InvalidArgument, TokenizerFileError

Loaded = tuple[NativeTokenizer, dict[str, Any]]

_HEAD_BYTES = 1 << 16
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
# In the order in which a folder is searched.
_BARE_FILES = ("tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken", "tekken*.json", "*.model*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenFacts:
    """What a tiktoken file does not say, as a caller gives it.

    Attributes:
        pattern: The regular expression that cuts text before the merges.
        special_tokens: Ids by text of the tokens outside the ranks.
    """

    pattern: str | None = None
    special_tokens: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse values of the wrong type."""
        if self.pattern is not None:
            _check_unicode("pattern", self.pattern)
        if self.special_tokens is None:
            return
        if not isinstance(self.special_tokens, Mapping) or not all(
            isinstance(text, str) and type(token_id) is int and 0 <= token_id < 1 << 32
            for text, token_id in self.special_tokens.items()
        ):
            raise InvalidArgument("special_tokens", "must map texts to token ids")
        for text in self.special_tokens:
            _check_unicode("special_tokens", text)

    @property
    def given(self) -> str | None:
        """The name of an argument that was given, or `None`."""
        if self.pattern is not None:
            return "pattern"
        return None if self.special_tokens is None else "special_tokens"


def _check_unicode(field: str, text: object) -> None:
    check_text(field, text)
    try:
        str(text).encode()
    except UnicodeEncodeError as error:
        raise not_unicode(field, error) from error


def find_bare_file(folder: Path) -> Path | None:
    """The vocabulary file of a folder without a `tokenizer.json`, or `None`.

    Raises:
        TokenizerFileError: There are several, and no name that goes first.
    """
    for pattern in _BARE_FILES:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise TokenizerFileError(f"{folder} holds several tokenizer files, name one of them: {names}")
        if found:
            return found[0]
    return None


def kind_of(path: Path) -> str:
    """What a file holds, by its first bytes: `gguf`, `tekken`, `json`, `tiktoken` or `sentencepiece`.

    Raises:
        TokenizerFileError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise TokenizerFileError(f"cannot read {path}: {error.strerror}") from error
    if head.startswith(b"GGUF") or path.suffix.lower() == ".gguf":
        return "gguf"
    if head.lstrip().startswith(b"{"):
        tekken = b'"default_num_special_tokens"' in head or path.name == "tekken.json"
        return "tekken" if tekken else "json"
    if _RANK_LINE.match(head) or path.suffix == ".tiktoken":
        return "tiktoken"
    # A SentencePiece file starts with its first piece: field 1, a message.
    return "sentencepiece" if head.startswith(b"\n") or ".model" in path.name else "json"


def load_bare(path: Path, kind: str, facts: TiktokenFacts, config: Mapping[str, Any]) -> Loaded:
    """Load a vocabulary file; gives the tokenizer and `bos_token`, ..., `eos_token_ids`.

    Args:
        path: The file.
        kind: What `kind_of` says of it.
        facts: What the caller knows; goes before `config`.
        config: The content of the `tokenizer_config.json` beside it.

    Raises:
        TokenizerFileError: The file cannot be used; the message names it.
    """
    if kind == "tekken":
        return load_tekken(path)
    if kind == "sentencepiece":
        return load_sentence_piece(
            path, _flag("add_bos_token", config, path), _flag("add_eos_token", config, path)
        )
    pattern = config.get("pat_str") if facts.pattern is None else facts.pattern
    if pattern is not None and not isinstance(pattern, str):
        raise TokenizerFileError(f"pat_str in {path.parent / 'tokenizer_config.json'} is not a string")
    return load_tiktoken(path, pattern, _special_tokens(facts, config, path.parent))


def _flag(name: str, config: Mapping[str, Any], path: Path) -> bool | None:
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise TokenizerFileError(f"{name} in {path.parent / 'tokenizer_config.json'} is neither true nor false")


def _special_tokens(
    facts: TiktokenFacts, config: Mapping[str, Any], folder: Path
) -> list[tuple[str, int, bool]] | None:
    if facts.special_tokens is not None:
        return [(text, token_id, True) for text, token_id in facts.special_tokens.items()]
    listed = config.get("added_tokens_decoder")
    if listed is None:
        return None
    problem = TokenizerFileError(f"added_tokens_decoder in {folder} does not map token ids to tokens")
    if not isinstance(listed, dict):
        raise problem
    tokens = []
    for key, value in listed.items():
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str) or not key.isdecimal() or int(key) >= 1 << 32:
            raise problem
        special = bool(value.get("special", True)) if isinstance(value, dict) else True
        tokens.append((content, int(key), special))
    return tokens
