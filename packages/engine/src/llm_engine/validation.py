"""Owns the one check of a request against its model; knows nothing of text or of the running engine.

Every route passes here before anything is queued. `SamplingParams` checks the range of its values when
it is made; what depends on the model (vocabulary, context) is checked here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.sampling_params import SamplingParams, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a model can take.

    Attributes:
        max_model_len: Longest context in tokens, prompt and output together.
        vocab_size: Token ids are below this.
    """

    max_model_len: int
    vocab_size: int


def validate_request(token_ids: Sequence[int], params: SamplingParams, limits: ModelLimits) -> int:
    """Check a request and return how many tokens it may generate.

    Args:
        token_ids: The prompt's tokens.
        params: The request's settings.
        limits: Of the model.

    Returns:
        The resolved `max_tokens`, at least 1 (for `max_tokens=0` one token is generated and dropped).

    Raises:
        InvalidRequest: The field is named; nothing was changed.
        ContextLengthExceeded: The prompt alone, or with `max_tokens`, does not fit into the context.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidRequest("params", f"must be SamplingParams, got {type(params).__name__}")
    validate_prompt_ids(token_ids, limits)
    _check_vocabulary("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_vocabulary("logit_bias", params.logit_bias or (), limits.vocab_size)
    room = limits.max_model_len - len(token_ids)
    if params.max_tokens is not None and params.max_tokens > room:
        raise ContextLengthExceeded(
            "max_tokens",
            f"prompt of {len(token_ids)} tokens and max_tokens of {params.max_tokens} exceed the context of "
            f"{limits.max_model_len} tokens; max_tokens may be at most {room}",
        )
    if params.min_tokens > room:
        raise ContextLengthExceeded(
            "min_tokens",
            f"must be at most {room}, what the context leaves after the prompt, got {params.min_tokens}",
        )
    return room if params.max_tokens is None else max(1, params.max_tokens)


def validate_prompt_ids(token_ids: Sequence[int], limits: ModelLimits) -> None:
    """Check a prompt alone: not empty, integers of the vocabulary, at least one token of context left.

    Raises:
        InvalidRequest: The prompt is empty or holds something that is no token id.
        ContextLengthExceeded: It is too long.
    """
    if len(token_ids) == 0:
        raise InvalidRequest("prompt", "must not be empty")
    if any(type(token) is not int for token in token_ids):
        bad = next(token for token in token_ids if type(token) is not int)
        raise InvalidRequest("prompt", f"token ids must be integers, got {type(bad).__name__}")
    _check_vocabulary("prompt", (min(token_ids), max(token_ids)), limits.vocab_size)
    if len(token_ids) >= limits.max_model_len:
        raise ContextLengthExceeded(
            "prompt",
            f"has {len(token_ids)} tokens; the context of {limits.max_model_len} tokens takes at most "
            f"{limits.max_model_len - 1}, to leave room for one of output",
        )


def _check_vocabulary(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token in token_ids:
        check_int(field, token, 0, vocab_size - 1)
