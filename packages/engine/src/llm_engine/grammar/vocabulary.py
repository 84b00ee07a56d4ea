"""A tokenizer's tokens as grammars see them: bytes, which of them are marks, which end an output."""

from __future__ import annotations

from collections.abc import Iterable

from llm_tokenizer import Tokenizer


class Vocabulary:
    """The tokens that grammars are made of.

    Args:
        tokenizer: The model's.
        eos_token_ids: The tokens that end an output; allowed where the grammar is complete.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.size = tokenizer.vocab_size
        self.num_words = -(-tokenizer.vocab_size // 32)
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = frozenset(tokenizer.special_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokenizer.token_bytes(token_id)

    def all_bytes(self) -> list[bytes]:
        """The bytes of every token, by id."""
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self.size)]

    def single_token(self, text: str) -> int | None:
        """The token of a mark such as "<think>"; None where it is spelled by several."""
        tokens = self.encode(text)
        return tokens[0] if len(tokens) == 1 else None

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without marks around it."""
        return self._tokenizer.encode(text, add_special_tokens=False)
