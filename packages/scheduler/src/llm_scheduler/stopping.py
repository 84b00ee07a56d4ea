"""When a request ends by what it yielded; knows nothing of steps, slots or the cache."""

from __future__ import annotations

from llm_scheduler.request import RequestState


def take_tokens(state: RequestState, tokens: list[int]) -> tuple[list[int], str | None, int | None]:
    """Add sampled tokens to a request's outputs up to its end.

    A stop token ends it only once ``min_tokens`` outputs came before; tokens behind the end are dropped.

    Args:
        state: A request below its limit.
        tokens: At least one token, in order.

    Returns:
        The tokens taken, the finish reason ("stop", "length" or None), and the stop token or None.
    """
    outputs = state.outputs
    request = state.request
    room = state.limit - state.num_known_tokens
    for index, token in enumerate(tokens, start=1):
        outputs.append(token)
        if token in request.stop_token_ids and len(outputs) > request.min_tokens:
            return tokens[:index], "stop", token
        if index == room:
            return tokens[:index], "length", None
    return tokens, None, None
