"""Owns the way from texts and pairs of texts to token sequences; knows nothing of the model's answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_tokenizer import PairTemplate, Tokenizer

from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.prompts import Prompt, to_tokens
from llm_engine.sampling_params import check_unicode


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Token ids of a text or a pair, and the tokens' types where they are not all 0."""

    token_ids: list[int]
    token_types: list[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """Encodes for one model.

    Attributes:
        tokenizer: None: the model takes token ids only.
        pairs: How two texts are joined.
        max_tokens: Longest sequence.
        vocab_size: Token ids are below this.
        num_token_types: Types that the model tells apart.
    """

    tokenizer: Tokenizer | None
    pairs: PairTemplate
    max_tokens: int
    vocab_size: int
    num_token_types: int

    def one(self, text: Prompt, field: str, truncate: int | None) -> EncodedText:
        """Encodes a text with the tokenizer's special tokens around it; token ids stay as they are.

        Args:
            text: Text or token ids.
            field: The field to name in an error.
            truncate: Tokens to cut it to, special ones kept; None: it must fit.

        Raises:
            InvalidRequest: It is neither, is empty, or holds something that is no token id.
            ContextLengthExceeded: It is too long.
        """
        limit = self._limit(truncate)
        ids = list(to_tokens(self.tokenizer, text, field=field).token_ids)
        self._check_ids(ids, field)
        if len(ids) > limit:
            self._check_cut(len(ids), truncate, field)
            ids = self._cut(text, ids, limit, field)
        return EncodedText(ids)

    def pair(
        self, first: Prompt, second: Prompt, fields: tuple[str, str], truncate: int | None
    ) -> EncodedText:
        """Encodes two texts as one sequence; of one that is too long, the longer text is cut first.

        Raises:
            InvalidRequest: As `one`.
            ContextLengthExceeded: As `one`; the second text is named.
        """
        limit = self._limit(truncate)
        one, other = self._plain(first, fields[0]), self._plain(second, fields[1])
        total = len(one) + len(other) + self.pairs.num_added
        if total > limit:
            self._check_cut(total, truncate, fields[1])
            one, other = _cut_longest(one, other, max(limit - self.pairs.num_added, 0))
            if not (one and other):
                raise ContextLengthExceeded("truncate", f"{limit} tokens leave no room for both texts")
        ids, types = self.pairs.join(one, other)
        return EncodedText(ids, types if self.num_token_types > 1 and any(types) else None)

    def _limit(self, truncate: int | None) -> int:
        if truncate is None:
            return self.max_tokens
        if isinstance(truncate, bool) or not isinstance(truncate, int) or not 0 < truncate <= self.max_tokens:
            raise InvalidRequest("truncate", f"must be from 1 to {self.max_tokens} or None, got {truncate!r}")
        return truncate

    def _plain(self, text: Prompt, field: str) -> list[int]:
        if isinstance(text, str):
            if self.tokenizer is None:
                raise InvalidRequest(field, "must be token ids: the model has no tokenizer")
            if not text:
                raise InvalidRequest(field, "must not be empty")
            check_unicode(field, text)
            return self.tokenizer.encode(text, add_special_tokens=False)
        ids = list(to_tokens(self.tokenizer, text, field=field).token_ids)
        self._check_ids(ids, field)
        return ids

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        if not ids:
            raise InvalidRequest(field, "must not be empty")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise InvalidRequest(
                    field, f"token ids must be integers below {self.vocab_size}, got {token!r}"
                )

    def _check_cut(self, length: int, truncate: int | None, field: str) -> None:
        if truncate is None:
            raise ContextLengthExceeded(
                field,
                f"has {length} tokens; the model takes at most {self.max_tokens}; truncate= cuts longer ones",
            )

    def _cut(self, text: Prompt, ids: list[int], limit: int, field: str) -> list[int]:
        if not isinstance(text, str):
            return ids[:limit]
        assert self.tokenizer is not None
        plain = self.tokenizer.encode(text, add_special_tokens=False)
        added = len(ids) - len(plain)
        starts = [first for first in range(added + 1) if ids[first : first + len(plain)] == plain]
        if not starts:
            return ids[:limit]  # the text is encoded otherwise between special tokens
        room = limit - added
        if room < 1:
            raise ContextLengthExceeded("truncate", f"{limit} tokens leave no room for {field}")
        first = starts[0]
        return ids[:first] + plain[:room] + ids[first + len(plain) :]


def _cut_longest(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Both texts within `room` tokens: the longer one gives up tokens until they are equal, then both do."""
    shorter = min(len(first), len(second))
    if shorter > room // 2:
        keep_second = min(len(second), room // 2)
        return first[: room - keep_second], second[:keep_second]
    if len(first) >= len(second):
        return first[: room - len(second)], second
    return first, second[: room - len(first)]
