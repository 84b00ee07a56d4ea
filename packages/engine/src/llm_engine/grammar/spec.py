"""What an output must look like, as plain data that crosses process borders; knows nothing of compilers."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
BACKENDS = ("llguidance", "xgrammar")
MAX_CHARS = 2**18


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on a whole output.

    Attributes:
        kind: What `text` is.
        text: "json_schema": the schema as JSON text. "json_object": nothing. "regex": a regular expression
            that the whole output matches. "choice": a JSON list of strings, one of which the output is.
            "grammar": a context-free grammar, in Lark's notation or in GBNF. "structural_tag": free text with
            constrained parts, as the JSON text of `response_format` (see `structural_tags`).
        after: The output is free until it holds this text, such as the mark that ends the model's thinking;
            "": it is constrained from the first token on.
        opens: Only an output that begins with this text is free until `after`: thinking that the model opens
            by itself, or not. Without effect on either where the tokenizer has no token of its own for it.
        backend: Which of `BACKENDS` enforces it; "": the engine's default.
    """

    kind: GrammarKind
    text: str = ""
    after: str = ""
    opens: str = ""
    backend: str = ""
