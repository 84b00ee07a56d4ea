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
    num_before = len(outputs)
    for token in tokens:
        outputs.append(token)
        if token in state.stop_token_ids and len(outputs) > state.request.min_tokens:
            return tokens[: len(outputs) - num_before], "stop", token
        if len(outputs) == state.max_outputs:
            return tokens[: len(outputs) - num_before], "length", None
    return tokens, None, None
