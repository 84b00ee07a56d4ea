"""The sampling wishes of one row, as they travel to the worker; knows nothing of requests, text or devices.

A `RowParams` is the `payload` of a scheduler request: opaque there, read here, and msgpack-able because it
may cross a process border. The engine has validated every value before it builds one.
"""

from __future__ import annotations

import msgspec

from llm_engine.grammar.spec import GrammarSpec


class RowParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the tokens of one row.

    Attributes:
        seed: The row's random stream, any 64-bit signed integer; resolved by the engine, never absent.
        temperature: 0 is greedy; otherwise the divisor of the logits.
        top_p: Nucleus mass in (0, 1]; 1 keeps all.
        top_k: Number of tokens kept; 0 keeps all.
        min_p: Least probability kept, relative to the likeliest token; 0 keeps all.
        presence_penalty: Subtracted once from each token already in the output.
        frequency_penalty: Subtracted for each occurrence in the output.
        repetition_penalty: Divides (or multiplies, where negative) the logits of tokens in prompt or output;
            1 is off.
        logprobs: How many most likely tokens to report for each sampled token (0: the sampled one only);
            None: none.
        prompt_logprobs: The same for each prompt position; None: none.
        logit_bias: Token id to the value added to its logit.
        min_tokens: The ids in `stop_token_ids` cannot be drawn before so many output tokens exist.
        stop_token_ids: The ids that end the request.
        grammar: What the output must look like; None: anything.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty changes the logits of this row."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def has_filters(self) -> bool:
        """Whether top-k, top-p or min-p concern the draw; none of them removes the largest logit."""
        return self.temperature > 0 and (self.top_p < 1 or self.min_p > 0 or self.top_k > 0)

    @property
    def is_plain(self) -> bool:
        """Whether the draw needs nothing but temperature and filters, and no logprobs are wanted."""
        return not (
            self.has_penalties or self.logit_bias or self.logprobs is not None or self.grammar is not None
        )
