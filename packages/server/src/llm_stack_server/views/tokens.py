"""How single tokens are shown in logprobs: text, bytes, offsets. Knows nothing of chat or completions."""

from __future__ import annotations

import codecs

from llm_tokenizer import InvalidArgument

from llm_stack_server.engine_port import Engine


class TokenTexts:
    """Shows tokens of one model, remembering what it has shown."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # not its tokenizer: an engine without one still serves token ids
        self._shown: dict[int, tuple[str, bytes]] = {}

    def show(self, token_id: int) -> tuple[str, bytes]:
        r"""The token's text and bytes. Bytes that are no whole character are shown as ``bytes:\xf0\x9f``."""
        if token_id not in self._shown:
            self._shown[token_id] = self._look_up(token_id)
        return self._shown[token_id]

    def _look_up(self, token_id: int) -> tuple[str, bytes]:
        try:
            raw = self._engine.tokenizer.token_bytes(token_id)
        except InvalidArgument:  # logits are often padded beyond the tokenizer's vocabulary
            return f"token_id:{token_id}", b""
        return _text_of(raw), raw

    def text(self, token_id: int) -> str:
        """The token's text alone."""
        return self.show(token_id)[0]

    def raw(self, token_id: int) -> bytes:
        """The token's bytes alone."""
        return self.show(token_id)[1]


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TextOffsets:
    """Where each token of a choice begins in its text, in characters, also where tokens cut one."""

    def __init__(self, texts: TokenTexts, hidden: frozenset[int]) -> None:
        self._texts = texts
        self._hidden = hidden  # tokens that the text leaves out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._chars = 0

    def place(self, token_id: int) -> int:
        """The offset of the next token."""
        offset = self._chars
        if token_id not in self._hidden:
            self._chars += len(self._decoder.decode(self._texts.raw(token_id)))
        return offset
