"""Owns the incremental decode of many rows, one call a step; knows nothing of requests or models.

Which text a step gives: joined over all steps, and with `finish` at the end, a row's text is that of decoding
all its output ids at once, cut at the first stop string that completes. Text is held back only as long as a
later token could change it (an unfinished character, a run of byte-fallback tokens) or could complete a stop
string with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm_tokenizer._native import NativeDetokenizer
from llm_tokenizer.arguments import check_flag, not_unicode
from llm_tokenizer.errors import InvalidArgument
from llm_tokenizer.token_ids import int32_array, token_id_list


@dataclass(frozen=True, slots=True)
class StepText:
    """What one step gave its rows, in the order of the call's slots.

    Attributes:
        texts: Text that may be shown now; often empty.
        stops: int32 `[R]`; index of the stop string that ended the row in this step, or -1.
    """

    texts: list[str]
    stops: NDArray[np.int32]


class Detokenizer:
    """Rows of text in the making; made by `Tokenizer.detokenizer()`.

    Calls from several threads take turns; the GIL is released while rows are worked on.
    """

    __slots__ = ("_native",)

    def __init__(self, native: NativeDetokenizer) -> None:
        self._native = native

    def open(
        self,
        prompt_ids: ArrayLike | Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
    ) -> int:
        """Open a row.

        With `prompt_ids` the row's text is what `decode(prompt + output)` has beyond its longest common start
        with `decode(prompt)`: the space before the first output word stays, and a character that the prompt's
        last tokens began is shown once it is complete.

        Args:
            prompt_ids: Tokens before the first output token.
            skip_special_tokens: Leave special tokens out of the text.
            stop: Strings that end the text. The one that completes first counts; of those that complete at
                the same character, the longest. One that is spelled like a special token also ends the text
                when that token comes and is skipped.
            include_stop_str_in_output: Keep the stop string in the text.

        Returns:
            The row's slot, valid until `finish` or `close`.

        Raises:
            InvalidArgument: An argument is wrong; no row was opened.
        """
        check_flag("skip_special_tokens", skip_special_tokens)
        check_flag("include_stop_str_in_output", include_stop_str_in_output)
        prompt = token_id_list("prompt_ids", prompt_ids)
        if not isinstance(stop, Sequence) or isinstance(stop, str):
            raise InvalidArgument("stop", f"must be a sequence of strings, is {type(stop).__name__}")
        try:
            return self._native.open(prompt, skip_special_tokens, list(stop), include_stop_str_in_output)
        except UnicodeEncodeError as error:
            raise not_unicode("stop", error) from error
        except TypeError as error:  # the other arguments are right
            raise InvalidArgument("stop", f"must be a sequence of strings ({error})") from error

    def step(self, slots: ArrayLike, ids: ArrayLike, offsets: ArrayLike | None = None) -> StepText:
        """Feed rows their new tokens, in order. A row that met its stop string ignores its tokens.

        Args:
            slots: int32 `[R]`, open rows.
            ids: int32 `[M]`, token ids; one a row where `offsets` is not given.
            offsets: int32 `[R + 1]`; row `i` gets `ids[offsets[i]:offsets[i + 1]]`.

        Raises:
            InvalidArgument: A slot is not open, an id is outside the vocabulary, or shapes do not fit. No row
                was changed.
        """
        texts, stops = self._native.step(
            int32_array("slots", slots),
            int32_array("ids", ids),
            None if offsets is None else int32_array("offsets", offsets),
        )
        return StepText(texts, stops)

    def finish(self, slot: int) -> str:
        """End the row and return what was still held back, cut at a stop string that it completes.

        Raises:
            InvalidArgument: The slot is not open.
        """
        return self._native.finish(_slot(slot))

    def close(self, slot: int) -> None:
        """Drop the row with whatever it held.

        Raises:
            InvalidArgument: The slot is not open.
        """
        self._native.close(_slot(slot))

    @property
    def num_open(self) -> int:
        """Rows that are open now."""
        return self._native.num_open


def _slot(slot: int) -> int:
    return int(int32_array("slot", [slot])[0])
