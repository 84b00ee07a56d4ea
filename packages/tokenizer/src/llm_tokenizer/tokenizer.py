"""Owns the `Tokenizer` that callers hold; knows nothing of file formats, of rows, or of how templates run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm_tokenizer.arguments import check_flag, check_text, not_unicode, whole_number
from llm_tokenizer.chat_template import ChatTemplates
from llm_tokenizer.detokenizer import Detokenizer
from llm_tokenizer.errors import InvalidArgument, TokenizerFileError
from llm_tokenizer.token_ids import token_id_list
from llm_tokenizer.tokenizer_files import LoadedTokenizer, load
from llm_tokenizer.tokenizer_formats import TiktokenFacts


class Tokenizer:
    """Encode, decode and render chats with one model's vocabulary. Immutable and thread-safe."""

    def __init__(self, loaded: LoadedTokenizer) -> None:
        self._native = loaded.native
        self._special_tokens = dict(loaded.special_tokens)
        self._eos_ids = loaded.eos_ids
        self._templates = ChatTemplates(loaded.chat_templates, self._special_tokens)

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
    ) -> Tokenizer:
        """Load a tokenizer file of any kind, or a folder that holds one.

        Kinds are told apart by content: `tokenizer.json`, GGUF, SentencePiece models, Mistral's
        `tekken.json`, and tiktoken's text of ranks. A tiktoken file holds neither its pattern nor its special
        tokens: they are known for the files of cl100k, o200k, p50k, Llama 3, Llama 4, Qwen 1 to 3 and Qwen
        3.6; for others they come from `pat_str` and `added_tokens_decoder` of a `tokenizer_config.json`
        beside it, or from here. `add_bos_token` and `add_eos_token` beside a SentencePiece model say what
        goes around a text; without them a BPE model gets its first token and a unigram model nothing.

        A folder holds one such file and, where there are, `tokenizer_config.json`,
        `special_tokens_map.json`, `chat_template.jinja` and `additional_chat_templates/*.jinja`.
        A `tokenizer.json` goes before vocabulary files of other kinds.

        Args:
            path: The file or folder.
            pattern: The regular expression that cuts text before the merges; only for a tiktoken file.
            special_tokens: Ids by text of the tokens outside the ranks; only for a tiktoken file.

        Raises:
            TokenizerFileError: Nothing usable is there; the message says what and where.
            InvalidArgument: An argument is of the wrong type, or `pattern` or `special_tokens` are for a file
                that has its own.
        """
        facts = TiktokenFacts(pattern=pattern, special_tokens=special_tokens)
        try:
            where = Path(path)
        except TypeError as error:
            raise InvalidArgument("path", f"must be a path, is {type(path).__name__}") from error
        try:
            return cls(load(where, facts))
        except OSError as error:
            raise TokenizerFileError(f"cannot read {path}: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        """The token ids of `text`; the GIL is released meanwhile.

        Args:
            text: Any valid Unicode text.
            add_special_tokens: Put the tokenizer's first and last tokens around it, where it has such.
            allow_special: Text that spells a special token becomes that token. With False it is encoded as
                any other text, so that what a user typed cannot pose as the end of a turn. Added tokens that
                are not special (`special_token_ids`) are matched either way.

        Raises:
            InvalidArgument: Not a string, one with lone surrogates, or a flag that is no bool.
        """
        check_text("text", text)
        check_flag("add_special_tokens", add_special_tokens)
        check_flag("allow_special", allow_special)
        try:
            return self._native.encode(text, add_special_tokens, allow_special)
        except UnicodeEncodeError as error:
            raise not_unicode("text", error) from error

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = True
    ) -> tuple[list[int], NDArray[np.int32]]:
        """`encode`, and for each token the range of characters of `text` that it stands for.

        Returns:
            The ids, and their offsets, int32[n, 2]: first character and the one behind the last. A token that
            holds part of a character covers all of it; tokens put around the text have (0, 0).

        Raises:
            InvalidArgument: As `encode`.
        """
        check_text("text", text)
        check_flag("add_special_tokens", add_special_tokens)
        try:
            ids, flat = self._native.encode_with_offsets(text, add_special_tokens)
        except UnicodeEncodeError as error:
            raise not_unicode("text", error) from error
        return ids, flat.reshape(-1, 2)

    @property
    def encode_path(self) -> Literal["fast", "library"]:
        """Which code encodes: the fast byte-level one, or the `tokenizers` library; both give the same."""
        return "fast" if self.library_reason is None else "library"

    @property
    def library_reason(self) -> str | None:
        """Why texts are encoded by the library, or `None` where the fast path encodes them."""
        return self._native.library_reason()

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, allow_special: bool = True
    ) -> list[list[int]]:
        """`encode` for each text, in parallel.

        Raises:
            InvalidArgument: As `encode`; `texts` is named.
        """
        check_flag("add_special_tokens", add_special_tokens)
        check_flag("allow_special", allow_special)
        try:
            if not isinstance(texts, str | Mapping | AbstractSet):
                return self._native.encode_batch(list(texts), add_special_tokens, allow_special)
        except UnicodeEncodeError as error:
            raise not_unicode("texts", error) from error
        except TypeError as error:  # the flags are right, so it is about the texts
            raise InvalidArgument("texts", f"must be a sequence of strings ({error})") from error
        raise InvalidArgument("texts", f"must be a sequence of strings, is {type(texts).__name__}")

    def decode(self, ids: ArrayLike | Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids` as a whole. Bytes that are not UTF-8 become U+FFFD; spaces are not cleaned up.

        Raises:
            InvalidArgument: An id is outside the vocabulary, or an argument is of the wrong type.
        """
        check_flag("skip_special_tokens", skip_special_tokens)
        return self._native.decode(token_id_list("ids", ids), skip_special_tokens)

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1, added tokens included."""
        return self._native.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The token that starts a text, where the files name one."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, where the files name one."""
        return self._id_of("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills up rows, where the files name one."""
        return self._id_of("pad_token")

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that the tokenizer's files call an end of text or of turn."""
        return self._eos_ids

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """The tokens that a decode leaves out unless told otherwise."""
        return frozenset(self._native.special_ids())

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts by name (`bos_token`, ..., and a model's own as `image_token`), only names that are set."""
        return dict(self._special_tokens)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact spelling in the vocabulary, or `None`.

        Raises:
            InvalidArgument: Not a string, or one with lone surrogates.
        """
        check_text("token", token)
        try:
            return self._native.token_to_id(token)
        except UnicodeEncodeError as error:
            raise not_unicode("token", error) from error

    def id_to_token(self, token_id: int) -> str | None:
        """The spelling of a token in the vocabulary, or `None`; byte-level spellings show a space as `Ġ`.

        Raises:
            InvalidArgument: Not an integer.
        """
        checked = whole_number("token_id", token_id)
        return self._native.id_to_token(checked) if 0 <= checked < self.vocab_size else None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds inside a text; those of a part of a character for many tokens.

        Raises:
            InvalidArgument: The id is outside the vocabulary, or no integer.
        """
        checked = whole_number("token_id", token_id)
        if not 0 <= checked < self.vocab_size:
            raise InvalidArgument("token_id", f"{checked} is outside the {self.vocab_size} token ids")
        return self._native.token_bytes(checked)

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD where they are not UTF-8.

        Raises:
            InvalidArgument: The id is outside the vocabulary.
        """
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    @property
    def chat_template(self) -> str | None:
        """The source of the default chat template, or `None`."""
        return self._templates.default

    def render_chat(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        template: str | None = None,
        now: datetime | None = None,
        **variables: Any,  # noqa: ANN401  # template variables are any JSON value
    ) -> str:
        """The prompt text of a conversation, as transformers' `apply_chat_template(tokenize=False)` gives it.

        The text holds the template's own first token, so encode it with `add_special_tokens=False`.

        Args:
            messages: Mappings, dataclasses or pydantic objects with a `role`; `content` is a string, `None`,
                or a list of parts, which the template gets as they are; what a tool says may be any JSON
                value. Keys whose value is `None` are left out.
            tools: Tool descriptions (JSON schemas), handed to the template. Python functions are not turned
                into schemas.
            documents: Documents, handed to the template.
            add_generation_prompt: End with the start of an assistant message.
            continue_final_message: End inside the last message, so that the model goes on with it; inside
                its `content`, or the text that is named, as `"reasoning_content"`. Excludes
                `add_generation_prompt`.
            template: A template's source, or the name of one of the model's templates.
            now: The time that a template's `strftime_now` shows; the local time without it.
            variables: Further variables of the template.

        Raises:
            InvalidArgument: An argument has the wrong form, or flags exclude each other.
            TemplateError: No template, a malformed one, one that refused the messages or is over its limits.
        """
        return self._templates.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template=template,
            variables=variables,
            now=now,
        )

    def detokenizer(self) -> Detokenizer:
        """A new detokenizer without rows."""
        return Detokenizer(self._native.detokenizer())

    def _id_of(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self._native.token_to_id(text)
